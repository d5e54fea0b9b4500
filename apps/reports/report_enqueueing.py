"""Request a report, and enqueue its Celery task on commit."""

from __future__ import annotations

from datetime import date, datetime
from functools import partial

from apps.core.enqueue_on_commit import enqueue_on_commit
from apps.reports import tasks
from apps.reports.models import Run
from apps.reports.services import report_requests
from apps.team.rights import Principal


def request(
    *, first_day: date, last_day: date, principal: Principal, now: datetime
) -> Run:
    """Queue a report run as `report_requests.request` does, and enqueue its task."""
    run = report_requests.request(
        first_day=first_day,
        last_day=last_day,
        actor=principal.actor,
        source=principal.source,
        now=now,
    )
    enqueue_on_commit(partial(tasks.make.delay, run.pk))
    return run
