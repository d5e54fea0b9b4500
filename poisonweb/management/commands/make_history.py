"""`manage.py make_history`: write four weeks of history for the sample, once.

After a kill the next start continues; once all days are written, it changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError

from apps.brokers.models import Broker
from apps.core import advisory_locks, clock
from apps.core.errors import Invalid, Refused
from apps.core.text_cleaning import one_line
from apps.reports import report_enqueueing
from apps.reports.models import Run
from apps.reports.services.report_requests import newest_over
from poisonweb.sample.history import writer
from poisonweb.sample.history.daily_failure_plan import plan
from poisonweb.sample.history.expected_report_numbers import ExpectedNumbers
from poisonweb.sample.history.traffic_calendar import DAY, DAYS, Weeks
from poisonweb.sample.history.writer import SAMPLE

log = logging.getLogger(__name__)

LEDGER = "sample-history.jsonl"
WAIT_LIMIT = timedelta(minutes=15)
POLL_SECONDS = 0.5


class Command(BaseCommand):
    help = "Make the four weeks before the sample's first start; idempotent."
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        try:
            with advisory_locks.attempt("sample history") as alone:
                if alone is None:
                    raise CommandError("another process is making the history")
                weeks = make(newest=newest_over(clock.now()), ledger=_ledger_file())
                ask_for_report(weeks)
        except OperationalError as trouble:
            raise CommandError(f"the database: {one_line(str(trouble))}") from trouble


def _ledger_file() -> Path:
    return Path(settings.POISONWEB_VAR) / LEDGER


def make(*, newest: date, ledger: Path) -> Weeks:
    """Write the missing days of the sample's history up to `newest`; return its weeks.

    If there are days of an earlier start, the weeks begin with the first of them.
    """
    written = writer.written_days()
    weeks = Weeks(first=min(written, default=newest - (DAYS - 1) * DAY))
    if written >= set(weeks) and ledger.exists():
        return weeks
    _refuse_without_sample()
    days = [plan(weeks, day) for day in weeks]
    ExpectedNumbers(days).write(ledger)
    for number, day in enumerate(days):
        if day.day not in written:
            writer.write(day, number=number)
    log.info("the sample's history from %s to %s is made", weeks.first, weeks.last)
    return weeks


def _refuse_without_sample() -> None:
    """Raise CommandError if the installation has no sample."""
    if not Broker.objects.filter(name="sample", is_sample=True).exists():
        raise CommandError("there is no sample here: start with POISONWEB_DEMO=1")


def ask_for_report(
    weeks: Weeks,
    *,
    wait_limit: timedelta = WAIT_LIMIT,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Request the report of the history's days once, after runs that overlap them.

    Right after midnight yesterday cannot be reported yet: the weeks end before it.
    """
    if Run.objects.filter(asked_by=str(SAMPLE.actor)).exists():
        return
    until = clock.now() + wait_limit
    while not _may_request(weeks) and clock.now() < until:
        sleep(POLL_SECONDS)
    try:
        report_enqueueing.request(
            first_day=weeks.first,
            last_day=weeks.last,
            principal=SAMPLE,
            now=clock.now(),
        )
    except (Refused, Invalid) as obstacle:
        raise CommandError(f"no report of the history yet: {obstacle}") from obstacle


def _may_request(weeks: Weeks) -> bool:
    """Check that no unfinished run of the report overlaps the history's days."""
    return not Run.objects.unfinished().overlapping(weeks.first, weeks.last).exists()
