"""Nothing of a supervised command stays, however it ends; and what it left is named."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poisonweb.embedded import process_control
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
# It adopts orphans and reaps whatever ends, so it runs in a process of its own.
SUPERVISE = """
import json, os, sys
from tests import run_without_leftovers
run_without_leftovers.ENDING_SECONDS = 1.0
try:
    outcome = run_without_leftovers.run(
        sys.argv[2:], environment=dict(os.environ), seconds=int(sys.argv[1])
    )
except run_without_leftovers.Interrupted as interrupted:
    print(json.dumps([interrupted.signal.name, []]))
else:
    print(json.dumps([outcome.code, outcome.leftovers]))
"""
# A process that leaves its parent, group and session, and notes its pid.
HIDING = """
import os, sys
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1], "w").write(f"{os.getpid()} {os.environ['TMPDIR']}")
    os.execvp("sleep", ["sleep", "600"])
while not os.path.getsize(sys.argv[1]) if os.path.exists(sys.argv[1]) else True:
    pass
"""


def supervise(*command: str, seconds: int = 60) -> subprocess.Popen[str]:
    words = (sys.executable, "-c", SUPERVISE, str(seconds), *command)
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str]) -> tuple[int | str, list[str]]:
    with process:
        said, _ = process.communicate(timeout=60)
    code, leftovers = json.loads(said)
    return code, leftovers


def hiding(note: Path, *, then: str) -> tuple[str, ...]:
    """Give a command that leaves a hidden process behind, and goes on with `then`."""
    return sys.executable, "-c", f"{HIDING}\n{then}", str(note)


def hidden(note: Path) -> tuple[int, Path]:
    """Give the hidden process, and the folder of its temporary files."""
    wait_until(lambda: note.exists() and " " in note.read_text())
    pid, folder = note.read_text().split(" ", 1)
    return int(pid), Path(folder)


def is_gone(note: Path) -> bool:
    pid, folder = hidden(note)
    return process_control.Identity.of(pid) is None and not folder.exists()


@pytest.mark.parametrize("code", [0, 5])
def test_a_process_left_behind_is_named_and_ended(tmp_path: Path, code: int) -> None:
    note = tmp_path / "pid"

    ended, leftovers = outcome(supervise(*hiding(note, then=f"sys.exit({code})")))

    pid, _ = hidden(note)
    assert (ended, leftovers) == (code, [f"process {pid}: sleep 600 "])
    assert is_gone(note)


def test_a_temporary_file_left_behind_is_named_and_removed(tmp_path: Path) -> None:
    code, leftovers = outcome(supervise("sh", "-c", 'echo > "$TMPDIR/forgotten"'))

    (leftover,) = leftovers
    assert code == 0
    assert leftover.startswith("temporary file ")
    assert leftover.endswith("/forgotten")
    assert not Path(leftover.removeprefix("temporary file ")).exists()


def test_what_pytest_keeps_of_failures_is_no_leftover_and_goes_too() -> None:
    make = 'mkdir "$TMPDIR/pytest-of-me"; echo "$TMPDIR" >&2; exit 1'

    code, leftovers = outcome(supervise("sh", "-c", make))

    assert (code, leftovers) == (1, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it(tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "pid"
    process = supervise(*hiding(note, then="import time; time.sleep(600)"))
    hidden(note)

    process.send_signal(number)

    assert outcome(process) == (number.name, [])
    assert is_gone(note)


def test_a_command_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pid"
    words = hiding(note, then="import time; time.sleep(600)")

    ended = outcome(supervise(*words, seconds=5))

    assert ended == ("SIGALRM", [])
    assert is_gone(note)


def test_a_command_that_tears_down_at_ctrl_c_has_the_time_for_it(
    tmp_path: Path,
) -> None:
    started, done = tmp_path / "started", tmp_path / "done"
    script = (
        "import pathlib, sys, time\n"
        "try:\n    pathlib.Path(sys.argv[1]).touch(); time.sleep(600)\n"
        "finally:\n    time.sleep(0.5); pathlib.Path(sys.argv[2]).touch()"
    )
    process = supervise(sys.executable, "-c", script, str(started), str(done))
    wait_until(started.exists)

    process.send_signal(signal.SIGTERM)

    assert outcome(process) == ("SIGTERM", [])
    assert done.exists()
