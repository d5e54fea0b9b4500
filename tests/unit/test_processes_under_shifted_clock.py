"""Under another clock everything lives at that moment, and waits as long as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("compiler")

ROOT = Path(__file__).resolve().parents[2]
EVE = datetime(2030, 12, 31, 23, 58, tzinfo=UTC)
SECOND = timedelta(seconds=1)
# The shell's, Postgres' (which has an environment of its own) and Python's time.
ASK = """
import json, subprocess, sys, tempfile, threading, time
from pathlib import Path
import psycopg
from poisonweb.embedded import postgres

with tempfile.TemporaryDirectory() as folder:
    with postgres.temporary(Path(folder, "postgres")) as url:
        with psycopg.connect(url) as session:
            (theirs,) = session.execute("SELECT extract(epoch FROM now())").fetchone()
shells = subprocess.check_output(["date", "+%s"], text=True)
began = time.monotonic()
threading.Event().wait(0.2)
time.sleep(0.1)
waited = time.monotonic() - began
print(json.dumps([time.time(), float(theirs), float(shells), waited]))
"""

# As a server of ours is started: with an environment that keeps the path alone.
DATE = ("sh", "-c", 'env -i PATH="$PATH" setpriv --no-new-privs date +[%s]')


def shifted(start: datetime, *command: str) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "tests.shifted_clock",
        f"{start:%Y-%m-%d %H:%M:%S}",
        *command,
    )


def run(*command: str, start: datetime = EVE, python: str = sys.executable) -> Any:
    _, *words = shifted(start, *command)
    done = subprocess.run(
        (python, *words),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_every_process_lives_at_that_moment_and_waits_as_long_as_ever() -> None:
    began = datetime.now(UTC)

    *times, waited = run(sys.executable, "-c", ASK)

    assert len(times) == 3
    assert_all_since(EVE, times, began)
    assert 0.3 <= waited < 60


def assert_all_since(start: datetime, times: Sequence[float], began: datetime) -> None:
    # The distance to the real clock is in whole seconds.
    earliest, latest = start - SECOND, start + (datetime.now(UTC) - began) + SECOND
    for time in times:
        assert earliest <= datetime.fromtimestamp(time, UTC) <= latest


def test_clocks_that_begin_at_once_keep_their_own_times() -> None:
    starts = [EVE + year * timedelta(days=365) for year in range(4)]
    began = datetime.now(UTC)

    with ThreadPoolExecutor(len(starts)) as pool:
        answers = pool.map(lambda start: run(*DATE, start=start), starts)

    for start, times in zip(starts, answers, strict=True):
        assert_all_since(start, times, began)


def test_the_folder_may_have_a_name_with_a_space(tmp_path: Path) -> None:
    odd = tmp_path / "a b é"
    odd.symlink_to(sys.prefix)
    began = datetime.now(UTC)

    times = run(*DATE, start=EVE, python=str(odd / "bin" / "python"))

    assert_all_since(EVE, times, began)


def test_under_another_clock_the_folder_may_have_another_name(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.symlink_to(sys.prefix)
    _, *words = shifted(EVE, *DATE)
    began = datetime.now(UTC)

    times = run(str(odd / "bin" / "python"), *words, start=EVE - timedelta(days=3650))

    assert_all_since(EVE, times, began)


def test_a_clock_begins_at_its_time_under_another_clock() -> None:
    began = datetime.now(UTC)

    times = run(*shifted(EVE, *DATE), start=EVE - timedelta(days=3650))

    assert_all_since(EVE, times, began)


def test_a_wait_until_a_time_of_day_ends_at_that_time() -> None:
    wait = (
        "import json, multiprocessing as m, time\n"
        "began = time.monotonic()\n"
        "m.Semaphore(0).acquire(timeout=0.2)\n"
        "print(json.dumps(time.monotonic() - began))"
    )

    assert 0.2 <= run(sys.executable, "-c", wait) < 60
