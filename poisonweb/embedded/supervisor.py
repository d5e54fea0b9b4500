"""Keep programs running, and end all of their processes, even after a kill.

Every program leads a process group, by which its orphans are found. The supervisor
adopts every descendant whose parent died, so at the end it can find all of them. It
writes a record of every start, so that the next supervisor can end the programs of a
killed one.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self

from poisonguard.policy import double_pause
from poisonweb.embedded import process_control
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.process_control import Identity, Program
from poisonweb.embedded.secrets import write_private

logger = logging.getLogger("poisonweb")

# Marks the environment of every program, which its descendants inherit.
MARK = "SUPERVISED_IN"

PR_SET_CHILD_SUBREAPER = 36
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FIRST_DELAY = 0.2
LONGEST_DELAY = 15.0
# After this time a program had started well: its next death counts as the first.
HEALTHY_SECONDS = 10.0

# Ask the kernel without waiting, and do not reap the child.
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT

LOG_BYTES = 10 * 1024 * 1024
UPKEEP_SECONDS = 0.25
# Of a start, for processes that a killed supervisor left behind.
MOST_LOOKS = 50


class Stopped(Exception):
    """The supervisor was asked to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRecord:
    """Identity and stop signal of a program, for the next supervisor."""

    identity: Identity
    signal: signal.Signals

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the record of a process that an earlier supervisor started."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        number = signal.Signals(fields.pop("signal"))
        return cls(identity=Identity(**fields), signal=number)

    def to_json(self) -> str:
        return json.dumps({**asdict(self.identity), "signal": self.signal})


@dataclass(kw_only=True, slots=True)
class Child:
    program: Program
    process: subprocess.Popen[bytes]
    started: float
    deaths: int = 0
    restart_at: float | None = None

    @property
    def running(self) -> bool:
        """Check that this child of the supervisor has not ended yet."""
        return self.restart_at is None


def restart_delay(deaths: int) -> float:
    """Return the seconds before `make run` restarts a child, after this many deaths.

    The deaths are those in a row.
    """
    return double_pause(FIRST_DELAY, deaths - 1, cap=LONGEST_DELAY)


class Supervisor:
    """Run programs from one thread; it handles signals and orphans of its process."""

    def __init__(self, *, root: Path, var: Path) -> None:
        self._root = root
        self._mark = {MARK: str(var)}
        self._run = var / "run"
        self._logs = var / "log"
        self._children: dict[str, Child] = {}
        self._stages: list[list[str]] = []
        # The process that `run` waits for; only `run` may reap it.
        self._awaited_pid = 0
        self._is_stop_requested = False
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._take_over_process()

    def _take_over_process(self) -> None:
        """Become the supervisor: handle stop signals, adopt all programs' orphans."""
        for end in (self._wakeup_reader, self._wakeup_writer):
            end.settimeout(0)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        for number in STOPPING:
            signal.signal(number, self._request_stop)
        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise CannotStart("This system cannot hand orphans to the supervisor.")

    def _request_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Note a request to stop the supervisor of `make run`, as a signal handler."""
        self._is_stop_requested = True

    def log(self, name: str) -> Path:
        """Return the path of the log file of a supervised program."""
        return self._logs / f"{name}.log"

    def start(self, programs: Sequence[Program]) -> None:
        """Start programs as one stage; later stages are stopped before earlier ones."""
        self._stages.append([])
        for program in programs:
            self._children[program.name] = self._launch(program)
            self._stages[-1].append(program.name)

    def until_ready(self, *, seconds: float) -> None:
        """Wait until all programs serve; raise CannotStart if one dies or is late."""
        waiting = dict(self._children)
        deadline = time.monotonic() + seconds
        while waiting:
            self.pause(process_control.POLL_SECONDS)
            for name, child in list(waiting.items()):
                if child.deaths or time.monotonic() > deadline:
                    raise CannotStart(self._complaint(name, "did not start"))
                if child.program.ready(child.process.pid):
                    del waiting[name]

    def run(self, program: Program) -> None:
        """Run `program` to its end; raise CannotStart if it fails."""
        child = self._launch(program)
        self._awaited_pid = child.process.pid
        while not _has_ended(child.process.pid):
            self.pause(UPKEEP_SECONDS)
        if self._clear_away(child):
            raise CannotStart(self._complaint(program.name, "failed"))

    def supervise(self) -> None:
        """Restart programs that die, until a stop is requested."""
        with suppress(Stopped):
            while True:
                self.pause(UPKEEP_SECONDS)
                self._rotate_logs()

    def pause(self, seconds: float) -> None:
        """Wait, then reap and restart children; raise Stopped on a stop request."""
        ready, _, _ = select.select([self._wakeup_reader], [], [], seconds)
        if ready:
            self._wakeup_reader.recv(4096)
        if self._is_stop_requested:
            raise Stopped
        self._reap()
        self._restart_due()

    def stop(self) -> None:
        """Stop all programs, the last stage first; kill those that left their group."""
        for stage in reversed(self._stages):
            self._stop_children(stage)
        self._stages.clear()
        while pids := process_control.children():
            for pid in pids:
                process_control.send(pid, signal.SIGKILL)
            for pid in pids:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _stop_children(self, names: Sequence[str]) -> None:
        """Signal programs, wait for their grace, then kill their groups."""
        children = [self._children.pop(name, None) for name in names]
        running = [child for child in children if child and child.running]
        for child in running:
            process_control.send(child.process.pid, child.program.stop_signal)
        signalled_at = time.monotonic()
        for child in running:
            seconds = signalled_at + child.program.grace - time.monotonic()
            _wait_until(partial(_has_ended, child.process.pid), seconds=seconds)
            self._clear_away(child)

    def _launch(self, program: Program) -> Child:
        """Start a program as a child that the supervisor watches."""
        process = self._spawn(program)
        return Child(program=program, process=process, started=time.monotonic())

    def _spawn(self, program: Program) -> subprocess.Popen[bytes]:
        """Start a program's process, marked as ours, and record it."""
        log = self.log(program.name)
        marked = replace(program, environment={**program.environment, **self._mark})
        process = process_control.spawn(marked, folder=self._root, log=log)
        try:
            self._record_process(program, process.pid)
        except OSError:
            process_control.kill_group(process.pid)
            process.wait()
            raise
        return process

    def _record_process(self, program: Program, pid: int) -> None:
        """Record a started process, so that the next supervisor can stop it."""
        identity = Identity.of(pid)
        if identity is not None:
            record = ProcessRecord(identity=identity, signal=program.stop_signal)
            write_private(self._record_file(program.name), record.to_json())

    def _record_file(self, name: str) -> Path:
        return self._run / f"{name}.pid"

    def _reap(self) -> None:
        """Collect ended processes of `make run`; restart children, ignore orphans."""
        leaders = {
            child.process.pid: child
            for child in self._children.values()
            if child.running
        }
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, ENDED):
                if ended.si_pid == self._awaited_pid:
                    return
                if ended.si_pid in leaders:
                    self._handle_death(leaders.pop(ended.si_pid))
                else:
                    os.waitpid(ended.si_pid, 0)

    def _handle_death(self, child: Child) -> None:
        """Schedule an ended child's restart by `make run`.

        A program that was to run once starts again only if it failed.
        """
        code = self._clear_away(child)
        if child.program.once and code == 0:
            del self._children[child.program.name]
            return
        lived = time.monotonic() - child.started
        child.deaths = 1 if lived > HEALTHY_SECONDS else child.deaths + 1
        self._schedule_restart(child, why=_describe(code))

    def _clear_away(self, child: Child) -> int:
        """Kill the rest of a child's group, delete its record, return its exit code."""
        # The group first: its number cannot be reused until the leader is reaped.
        process_control.kill_group(child.process.pid)
        code = child.process.wait()
        self._record_file(child.program.name).unlink(missing_ok=True)
        return code

    def _schedule_restart(self, child: Child, *, why: str) -> None:
        """Set when a child starts again, later after each death, and log it."""
        seconds = restart_delay(child.deaths)
        child.restart_at = time.monotonic() + seconds
        logger.warning(
            "%s ended (%s); it starts again in %.1f s", child.program.name, why, seconds
        )

    def _restart_due(self) -> None:
        """Start the children of `make run` again whose time has come."""
        now = time.monotonic()
        for child in self._children.values():
            if child.restart_at is not None and now >= child.restart_at:
                self._relaunch(child)

    def _relaunch(self, child: Child) -> None:
        """Start an ended child of `make run` again; on failure schedule another try."""
        try:
            child.process = self._spawn(child.program)
        except OSError as problem:
            # A full disk or process table is temporary; the supervisor goes on.
            child.deaths += 1
            self._schedule_restart(child, why=str(problem))
        else:
            child.started = time.monotonic()
            child.restart_at = None

    def _rotate_logs(self) -> None:
        """Copy logs of programs that are too long, and truncate them."""
        for log in self._logs.glob("*.log"):
            if log.stat().st_size > LOG_BYTES:
                # On a full disk, the next lines are worth more than the old ones.
                with suppress(OSError):
                    shutil.copyfile(log, log.with_suffix(".log.1"))
                # The program appends, so it writes at the new end.
                os.truncate(log, 0)

    def _complaint(self, name: str, what: str) -> str:
        """Say what is wrong with a program, with the last line of its log."""
        log = self.log(name)
        return f"{name} {what}: {process_control.last_line(log)} (more in {log})"


def recover(var: Path, *, seconds: float = 5.0) -> None:
    """End the programs that a killed supervisor left behind."""
    records = {path: ProcessRecord.read(path) for path in (var / "run").glob("*.pid")}
    alive = [record for record in records.values() if record.identity.alive]
    for record in alive:
        process_control.send(record.identity.pid, record.signal)
    _wait_until(
        lambda: not any(record.identity.alive for record in alive), seconds=seconds
    )
    for record in alive:
        if record.identity.alive:
            process_control.kill_group(record.identity.pid)
    _kill_marked(var)
    for path in records:
        path.unlink()


def _kill_marked(var: Path) -> None:
    """Kill the remaining processes of programs of this `var`, in any group.

    One look may miss a process: in the middle of `exec` it has no environment, and one
    that was just forked is not in the list yet.
    """
    mark = os.fsencode(f"{MARK}={var}")
    empty_looks = 0
    for _ in range(MOST_LOOKS):
        empty_looks = 0 if _kill_those_with(mark) else empty_looks + 1
        if empty_looks == 2:
            return
        time.sleep(process_control.POLL_SECONDS)


def _kill_those_with(mark: bytes) -> int:
    """Kill the processes with this variable in their environment; count them."""
    number = 0
    for pid in process_control.all_pids():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            environment = (process_control.PROC / str(pid) / "environ").read_bytes()
            if mark in environment.split(b"\0"):
                process_control.send(pid, signal.SIGKILL)
                number += 1
    return number


def _wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Wait until a function returns true, for some seconds at most; return nothing."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(process_control.POLL_SECONDS)


def _has_ended(pid: int) -> bool:
    """Check whether a child has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, ENDED) is not None
    except ChildProcessError:
        return False


def _describe(code: int) -> str:
    """Describe how a process ended: its exit code, or the signal."""
    return (
        f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    )
