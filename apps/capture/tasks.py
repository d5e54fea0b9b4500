"""Celery tasks of capture: partitions, silent guards, ended skips, and counts."""

from __future__ import annotations

import logging

from celery import shared_task

from apps.capture import daily_partition_creation as by_day
from apps.capture.intake import (
    automatic_skips,
    guard_heartbeats,
    message_or_consumer_at_fault,
    messages_too_large_to_capture,
    repeat_folding,
)
from apps.core import clock
from apps.poison import skip_expiry_and_pruning
from apps.poison.services import counts, failure_count_gathering

log = logging.getLogger(__name__)


@shared_task(name="apps.capture.tasks.partitions")
def partitions() -> None:
    """Make the coming days' partitions of failures and counters."""
    names = by_day.make(today=clock.now().date())
    if names:
        log.info("made partitions %s", ", ".join(names))


@shared_task(name="apps.capture.tasks.forget_guards")
def forget_guards() -> None:
    """Delete the guards of consumer processes that were silent for an hour."""
    guard_heartbeats.prune(now=clock.now())


@shared_task(name="apps.capture.tasks.forget_oversize")
def forget_oversize() -> None:
    """Delete oversize messages that no consumer reports any more."""
    messages_too_large_to_capture.prune(now=clock.now())


@shared_task(name="apps.capture.tasks.forget_folded_reports")
def forget_folded_reports() -> None:
    """Delete the ids of failure reports that were folded more than a day ago."""
    repeat_folding.prune(now=clock.now())


@shared_task(name="apps.capture.tasks.end_skips")
def end_skips() -> None:
    """End skips that expired or all positions passed; make those that waited.

    Suspected skips that no consumer contradicted become firm.
    """
    now = clock.now()
    expired, passed = (
        skip_expiry_and_pruning.expire(now=now),
        automatic_skips.end_passed(now=now),
    )
    if expired or passed:
        log.info("%d skips expired, and every position passed %d", expired, passed)
    firm = message_or_consumer_at_fault.make_firm(now=now)
    if firm:
        log.info("%d suspected skips were not contradicted, and are firm", firm)
    automatic_skips.make_waiting_skips(now=now)


@shared_task(name="apps.capture.tasks.forget_skips")
def forget_skips() -> None:
    """Delete the automatic skips that ended long ago."""
    skip_expiry_and_pruning.prune(now=clock.now())


@shared_task(name="apps.capture.tasks.gather_counts")
def gather_counts() -> None:
    """Add changes since the last time to the counts of messages and failures."""
    counts.gather()
    failure_count_gathering.gather()


@shared_task(name="apps.capture.tasks.check_counts")
def check_counts() -> None:
    """Count messages and failures once a day, and mend counts that differ."""
    if counts.is_check_due(now=clock.now()):
        counts.check(now=clock.now())
