"""Programs, their processes, and identities by which a process is recognised."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from poisonweb.embedded.errors import CannotStart

PROC = Path("/proc")
POLL_SECONDS = 0.02
# Java on a busy machine needs a minute; one that cannot start ends by itself.
START_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A command that runs until `stop_signal`; `ready(pid)` says whether it serves.

    With `once`, it is finished when it ends with exit code 0.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stop_signal: signal.Signals = signal.SIGTERM
    grace: float = 10.0
    wrapper: tuple[str, ...] = ()
    ready: Callable[[int], bool] = lambda _: True
    once: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Identifies a process for ever: another process may get the same pid later."""

    pid: int
    started: str
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """Return a running process's identity for `make run`; None if it has ended."""
        fields = stat(pid)
        if fields is None or fields[0] == "Z":
            return None
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return cls(pid=pid, started=fields[19], boot=boot)

    @classmethod
    def own(cls) -> Self:
        """Return the identity of this process of `make run`.

        Raises CannotStart without /proc.
        """
        identity = cls.of(os.getpid())
        if identity is None:
            raise CannotStart("There is no /proc to know processes by.")
        return identity

    @property
    def alive(self) -> bool:
        """Check if this process of `make run` still runs, not another with its id."""
        return Identity.of(self.pid) == self


def stat(pid: int) -> list[str] | None:
    """Return a process's fields of /proc/<pid>/stat from its state on, or None."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in parentheses, which may contain any character.
    return text.rpartition(")")[2].split()


def all_pids() -> Iterator[int]:
    """Yield the process ids of all processes of this machine."""
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def children() -> list[int]:
    """List the ids of the child processes of this one, the supervisor of `make run`."""
    stats = ((pid, stat(pid)) for pid in all_pids())
    ours = str(os.getpid())
    return [pid for pid, fields in stats if fields and fields[1] == ours]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(group: int) -> None:
    """Kill all processes of a group, if any is still there."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def spawn(program: Program, *, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start `program` of `make run` as a group's leader; it ends when we end."""
    stop = program.stop_signal.name.removeprefix("SIG")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            # After the wrapper: a change of the user resets the parent-death signal.
            (*program.wrapper, "setpriv", "--pdeathsig", stop, "--", *program.command),
            env=program.environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )


@contextmanager
def running(program: Program, *, folder: Path) -> Iterator[None]:
    """Keep `program` running and ready inside the block, without a supervisor."""
    log = folder / f"{program.name}.log"
    process = spawn(program, folder=folder, log=log)
    try:
        _wait_until_ready(program, process, log)
        yield
    finally:
        process.send_signal(program.stop_signal)
        try:
            process.wait(program.grace)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.wait()


def _wait_until_ready(
    program: Program, process: subprocess.Popen[bytes], log: Path
) -> None:
    """Wait until a program is ready; raises CannotStart with the log's last line."""
    deadline = time.monotonic() + START_SECONDS
    while not program.ready(process.pid):
        if process.poll() is not None or time.monotonic() > deadline:
            raise CannotStart(f"{program.name} did not start: {last_line(log)}")
        time.sleep(POLL_SECONDS)


def last_line(log: Path) -> str:
    """Return the last line of a program's log that is not blank."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
