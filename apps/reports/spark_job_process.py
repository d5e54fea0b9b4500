"""Run the Spark job in its own process: the product itself never imports Spark.

The job watches its standard input, and ends when this process is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import IO
from urllib.parse import quote

from django.conf import settings
from django.db import connection

from apps.core.text_cleaning import one_line, readable
from apps.reports.errors import RunFailed, TakenOver

MODULE = "spark.jobs.nightly_failure_rate"
MOST_TIME = timedelta(hours=6)
POLL_SECONDS = 0.25
LOG_BYTES = 8_000
GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOrder:
    """The job's task: which days it reports, in which snapshot, for which run."""

    run: int
    epoch: int
    first_day: date
    last_day: date
    snapshot: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the command-line arguments of the report's Spark job."""
        return (
            *("--run", str(self.run), "--epoch", str(self.epoch)),
            *("--first", self.first_day.isoformat()),
            *("--last", self.last_day.isoformat()),
            *("--snapshot", self.snapshot, "--lake", settings.POISONWEB_LAKE),
        )


def carry_out(order: JobOrder, *, may_go_on: Callable[[], bool]) -> dict[str, int]:
    """Run the Spark job to its end; return how many facts of each kind it read.

    Raises RunFailed when it fails, TakenOver when `may_go_on` says no meanwhile.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        with _running_process(order, output, log) as process:
            _wait_for_end(process, may_go_on)
        if process.returncode:
            raise _failure(process.returncode, log)
        return _rows_read(output, log)


@contextmanager
def _running_process(
    order: JobOrder, output: IO[bytes], log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the Spark job; at the end of the block, end it."""
    process = subprocess.Popen(  # noqa: S603 - our parts module, numbers and dates
        (sys.executable, "-m", MODULE, *order.arguments),
        cwd=settings.BASE_DIR,
        env={**os.environ, "DATABASE_URL": database_url()},
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=log,
    )
    try:
        yield process
    finally:
        _end_process(process)


def database_url() -> str:
    """Return the URL of Django's database, for the Spark job.

    Tests do not use the environment's.
    """
    parts = connection.settings_dict
    user, password = quote(parts["USER"], safe=""), quote(parts["PASSWORD"], safe="")
    host = f"[{parts['HOST']}]" if ":" in parts["HOST"] else parts["HOST"]
    address = f"{host}:{parts['PORT']}" if parts["PORT"] else host
    return f"postgresql://{user}:{password}@{address}/{quote(parts['NAME'], safe='')}"


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Close the Spark job's standard input, so that it ends; kill it if not."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_end(
    process: subprocess.Popen[bytes], may_go_on: Callable[[], bool]
) -> None:
    """Wait until the Spark job ends; raise RunFailed if that takes too long.

    Raises TakenOver when `may_go_on` says no meanwhile.
    """
    until = time.monotonic() + MOST_TIME.total_seconds()
    while process.poll() is None:
        if time.monotonic() > until:
            raise RunFailed(f"the job took more than {MOST_TIME}")
        if not may_go_on():
            raise TakenOver
        time.sleep(POLL_SECONDS)


def _failure(code: int, log: IO[bytes]) -> RunFailed:
    """Build the error of a failed Spark job, from its last line and its log."""
    text = _tail(log)
    lines = [line for line in text.splitlines() if line.strip()]
    why = one_line(lines[-1]) if lines else "it said nothing"
    end = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
    return RunFailed(f"the job {end}: {why}", log=text)


def _rows_read(output: IO[bytes], log: IO[bytes]) -> dict[str, int]:
    """Parse how many rows of each kind the Spark job read, as it reports."""
    output.seek(0)
    try:
        # One line and nothing else: Java prints to the log.
        (line,) = output.read().splitlines()
        rows = json.loads(line)["rows"]
        return {str(kind): int(number) for kind, number in rows.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        message = "the job ended well and did not say what it read"
        raise RunFailed(message, log=_tail(log)) from None


def _tail(log: IO[bytes]) -> str:
    """Read the end of the Spark job's log."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - LOG_BYTES))
    return readable(log.read())
