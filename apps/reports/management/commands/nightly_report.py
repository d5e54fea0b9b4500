"""`manage.py nightly_report`: make the report of some days here and now."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused
from apps.reports.models import Run
from apps.reports.services import requests, running
from apps.reports.states import State

HERE = Actor.system("command line")


class Command(BaseCommand):
    help = "Make the report of a UTC day, or of several, and publish it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--day", type=_day, metavar="D", help="as 2026-11-19")
        which.add_argument("--from", type=_day, metavar="D", dest="first")
        parser.add_argument("--to", type=_day, metavar="D", dest="last")

    def handle(self, *_: Any, **options: Any) -> None:
        first = options["day"] or options["first"]
        last = options["last"] or first
        if options["day"] and options["last"]:
            raise CommandError("--to goes with --from; --day is one day")
        try:
            run = requests.request(
                first_day=first,
                last_day=last,
                actor=HERE,
                source="command",
                now=clock.now(),
            )
        except (Invalid, Refused) as refusal:
            raise CommandError(str(refusal)) from None
        self._make(run)

    def _make(self, run: Run) -> None:
        running.run(run_id=run.pk, clock=clock.now)
        run.refresh_from_db()
        if run.state == State.FAILED:
            raise CommandError(f"run {run.pk} failed: {run.trouble}\n{run.log}")
        if run.state != State.DONE:
            raise CommandError(f"run {run.pk} waits: another worker makes reports now")
        self.stdout.write(
            f"run {run.pk}: {run.first_day} to {run.last_day}, {run.rows_in} rows,"
            f" {run.late_rows} of them late"
        )


def _day(text: str) -> date:
    return date.fromisoformat(text)
