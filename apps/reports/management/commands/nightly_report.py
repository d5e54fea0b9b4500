"""`manage.py nightly_report`: make the report of some days in this process."""

from __future__ import annotations

import os
import signal
from argparse import ArgumentParser, ArgumentTypeError
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import InterfaceError, OperationalError

from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import Invalid
from apps.reports.errors import RunInTheWay
from apps.reports.models import Run
from apps.reports.report_run_states import RunState
from apps.reports.services import foreground_runs, report_requests
from apps.reports.services.foreground_runs import WaitPolicy

HERE = Actor.system("command line")
TRY_LATER = os.EX_TEMPFAIL
# The exit code that shells give a command that Ctrl-C ended.
STOPPED = 128 + signal.SIGINT


class Command(BaseCommand):
    help = (
        "Make the report of a UTC day, or of several, and publish it. Waits for a run "
        "that makes one of these days, or any: reports are made one at a time."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--day", type=_parse_day, metavar="D", help="as 2026-11-19")
        which.add_argument(
            "--from",
            type=_parse_day,
            metavar="D",
            dest="first",
            help="the first of several",
        )
        parser.add_argument(
            "--to",
            type=_parse_day,
            metavar="D",
            dest="last",
            help="the last; if not given, the newest that is over",
        )
        parser.add_argument(
            "--no-wait",
            action="store_false",
            dest="wait",
            help=f"end with status {TRY_LATER} rather than wait for another run",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Make the nightly report of the days, wait for it, and print its result."""
        first = options["day"] or options["first"]
        newest = max(first, report_requests.newest_over(clock.now()))
        last = options["day"] or options["last"] or newest
        if options["day"] and options["last"]:
            raise CommandError("--to goes with --from; --day is one day")
        try:
            run = self._make_report(first, last, wait=options["wait"])
        except Invalid as refusal:
            raise CommandError(str(refusal)) from None
        except (OperationalError, InterfaceError) as away:
            raise CommandError(f"Postgres is away: {away}; try again later") from None
        except RunInTheWay as obstacle:
            later = f"{obstacle}; try again later, or without --no-wait"
            raise CommandError(later, returncode=TRY_LATER) from None
        except KeyboardInterrupt:
            raise CommandError(
                "stopped; a run that is unfinished goes on with the next worker of the "
                "queue reports, or with this command",
                returncode=STOPPED,
            ) from None
        self._print_result(run)

    def _make_report(self, first: date, last: date, *, wait: bool) -> Run:
        """Make a report run here, or wait for another one if `wait`."""
        return foreground_runs.make(
            first_day=first,
            last_day=last,
            actor=HERE,
            source="command",
            policy=WaitPolicy(clock=clock.now, notify=self._print_wait, wait=wait),
        )

    def _print_wait(self, run: Run) -> None:
        """Print that the command waits for another report run."""
        self.stderr.write(
            f"waiting for run {run.pk} ({run.first_day} to {run.last_day}), which is "
            "being made; Ctrl-C stops the waiting"
        )
        self.stderr.flush()

    def _print_result(self, run: Run) -> None:
        """Print the result of a report run; raise CommandError if it failed."""
        if run.state == RunState.FAILED:
            raise CommandError(f"run {run.pk} failed: {run.trouble}\n{run.log}")
        self.stdout.write(
            f"run {run.pk}: {run.first_day} to {run.last_day}, {run.rows_in} rows,"
            f" {run.late_rows} of them late"
        )


def _parse_day(text: str) -> date:
    """Parse a report's day in an argument; raise ArgumentTypeError."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no day: write it as 2026-11-19") from None
