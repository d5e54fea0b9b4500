"""Celery's doors of capture."""

from __future__ import annotations

import logging

from celery import shared_task

from apps.capture import partitions as by_day
from apps.capture.intake import automatic_skips, guards, oversize, suspicions
from apps.core import clock
from apps.poison import skip_list

log = logging.getLogger(__name__)


@shared_task(name="apps.capture.tasks.partitions")
def partitions() -> None:
    """Make the partitions of the coming days."""
    made = by_day.make(today=clock.now().date())
    if made:
        log.info("made partitions %s", ", ".join(made))


@shared_task(name="apps.capture.tasks.forget_guards")
def forget_guards() -> None:
    """Forget the guards of processes that are gone."""
    guards.forget(now=clock.now())


@shared_task(name="apps.capture.tasks.forget_oversize")
def forget_oversize() -> None:
    """Forget the messages that were too large, and of which nobody tells any more."""
    oversize.forget(now=clock.now())


@shared_task(name="apps.capture.tasks.end_skips")
def end_skips() -> None:
    """End the skips whose time is up, or that nobody needs; make those that waited."""
    now = clock.now()
    expired, passed = skip_list.expire(now=now), automatic_skips.end_passed(now=now)
    if expired or passed:
        log.info("%d skips expired, and every position passed %d", expired, passed)
    firm = suspicions.make_firm(now=now)
    if firm:
        log.info("%d suspected skips were contradicted by nobody, and are firm", firm)
    automatic_skips.share_waiting(now=now)


@shared_task(name="apps.capture.tasks.forget_skips")
def forget_skips() -> None:
    """Delete the automatic skips that ended long ago."""
    skip_list.forget(now=clock.now())
