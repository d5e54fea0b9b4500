"""Celery tasks of capture: partitions, silent guards and skips that have ended."""

from __future__ import annotations

import logging

from celery import shared_task

from apps.capture import partitions as by_day
from apps.capture.intake import (
    automatic_skips,
    guards,
    messages_left_at_broker,
    suspicions,
)
from apps.core import clock
from apps.poison import skip_list

log = logging.getLogger(__name__)


@shared_task(name="apps.capture.tasks.partitions")
def partitions() -> None:
    """Make the partitions of the coming days."""
    names = by_day.make(today=clock.now().date())
    if names:
        log.info("made partitions %s", ", ".join(names))


@shared_task(name="apps.capture.tasks.forget_guards")
def forget_guards() -> None:
    """Delete the guards of processes that ended."""
    guards.prune(now=clock.now())


@shared_task(name="apps.capture.tasks.forget_oversize")
def forget_oversize() -> None:
    """Delete oversize messages that no consumer reports any more."""
    messages_left_at_broker.prune(now=clock.now())


@shared_task(name="apps.capture.tasks.end_skips")
def end_skips() -> None:
    """End skips that expired or that all positions passed; make those that waited."""
    now = clock.now()
    expired, passed = skip_list.expire(now=now), automatic_skips.end_passed(now=now)
    if expired or passed:
        log.info("%d skips expired, and every position passed %d", expired, passed)
    firm = suspicions.make_firm(now=now)
    if firm:
        log.info("%d suspected skips were not contradicted, and are firm", firm)
    automatic_skips.make_waiting_skips(now=now)


@shared_task(name="apps.capture.tasks.forget_skips")
def forget_skips() -> None:
    """Delete the automatic skips that ended long ago."""
    skip_list.prune(now=clock.now())
