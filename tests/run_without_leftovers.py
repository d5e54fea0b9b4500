"""Run a command to its end and see to it that nothing of it stays on the machine.

This process adopts every descendant whose parent died (the kernel calls it a child
subreaper), so no process of the command escapes by changing its group or session.
Temporary files go into a folder of their own, which is removed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from poisonweb.embedded import process_control

PR_SET_CHILD_SUBREAPER = 36
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
# Servers and browsers need a moment to end after the one who stopped them.
ENDING_SECONDS = 60.0
TEARDOWN_SECONDS = 60.0
# pytest keeps the newest of these for who wants to look into them.
EXPECTED = "pytest-of-*"


class Interrupted(Exception):
    """A signal ended the run; SIGALRM says that its time was over."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutcome:
    """The exit code, and what the command left: processes and files, one a line."""

    code: int
    leftovers: tuple[str, ...]


def run(
    command: Sequence[str], *, environment: Mapping[str, str], seconds: int
) -> CommandOutcome:
    """Run a command for `seconds` at most; raise Interrupted at a signal."""
    _adopt_orphans()
    with tempfile.TemporaryDirectory(
        prefix="poisonweb-", ignore_cleanup_errors=True
    ) as folder:
        try:
            with _interruptible(seconds):
                return _run(command, {**environment, "TMPDIR": folder}, Path(folder))
        finally:
            _kill(descendants())


def _run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> CommandOutcome:
    # A group of its own: a terminal's Ctrl-C comes to us, and we pass it on once.
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, process_group=0
    )
    try:
        process.returncode = _await_end(process.pid)
    except Interrupted:
        _ask_to_stop(process)
        raise
    leftovers = (*_running_still(), *_files_in(folder))
    return CommandOutcome(code=process.returncode, leftovers=leftovers)


def _adopt_orphans() -> None:
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("This system does not hand orphans to the supervisor of tests.")


@contextmanager
def _interruptible(seconds: int) -> Iterator[None]:
    """Turn the first signal that asks to stop into Interrupted, and ignore the next."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in STOPPING}
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _await_end(pid: int) -> int:
    """Reap ended children of ours: the command's orphans, too."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _ask_to_stop(process: subprocess.Popen[bytes]) -> None:
    """Let the command tear down what it set up, as after a Ctrl-C."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(TEARDOWN_SECONDS)


def descendants() -> list[int]:
    """Return the ids of all living processes below this one."""
    parents: dict[int, int] = {}
    for pid in process_control.all_pids():
        fields = process_control.stat(pid)
        if fields and fields[0] != "Z":
            parents[pid] = int(fields[1])
    pids = [os.getpid()]
    for parent in pids:
        pids += [pid for pid, its_parent in parents.items() if its_parent == parent]
    return pids[1:]


def _running_still() -> list[str]:
    deadline = time.monotonic() + ENDING_SECONDS
    while (pids := descendants()) and time.monotonic() < deadline:
        _reap()
        time.sleep(0.05)
    return [f"process {pid}: {_command_of(pid)}" for pid in pids]


def _command_of(pid: int) -> str:
    with suppress(OSError):
        words = (process_control.PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace")[:200]
    return "it has ended meanwhile"


def _files_in(folder: Path) -> list[str]:
    expected = {*folder.glob(EXPECTED)}
    return [
        f"temporary file {path}" for path in folder.iterdir() if path not in expected
    ]


def _kill(pids: Sequence[int]) -> None:
    while pids:
        for pid in pids:
            process_control.send(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
        pids = descendants()
    _reap()


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
