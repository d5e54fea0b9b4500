"""Celery tasks of reports; the workers of their queue have Spark installed."""

from __future__ import annotations

import logging

from celery import shared_task
from django.conf import settings

from apps.core import clock
from apps.reports.services import next_unfinished_run, planning, report_run_execution

log = logging.getLogger(__name__)


@shared_task(name="apps.reports.tasks.make")
def make(run_id: int) -> None:
    """Make and publish the report of a queued run."""
    report_run_execution.run(run_id=run_id, clock=clock.now)


@shared_task(name="apps.reports.tasks.rescue")
def rescue() -> None:
    """Run the report runs that wait, and those whose worker died."""
    while (run_id := next_unfinished_run.next_to_run()) is not None:
        report_run_execution.run(run_id=run_id, clock=clock.now)


@shared_task(name="apps.reports.tasks.nightly")
def nightly() -> None:
    """Queue the report runs of the night, and run them."""
    for run in planning.plan(hour=settings.POISONWEB_REPORT_HOUR, now=clock.now()):
        log.info("report run %d: %s to %s", run.pk, run.first_day, run.last_day)
    rescue()
