"""Keeps programs running, and leaves nothing behind, whatever they or we die of.

Each program leads a process group, so its orphans are known. We adopt every descendant
whose parent died, so at the end there is nobody we could not find. Each start is noted
with its time, so that the next supervisor can clear up after a killed one.
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

from poisonweb.embedded import processes
from poisonweb.embedded.errors import CannotStart
from poisonweb.embedded.processes import Identity, Program
from poisonweb.embedded.secrets import write_private

logger = logging.getLogger("poisonweb")

# In the environment of every program, and so of all that it starts, to be known by.
MARK = "SUPERVISED_IN"

PR_SET_CHILD_SUBREAPER = 36
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

FIRST_DELAY = 0.2
LONGEST_DELAY = 15.0
# A program that lived this long had started well: its next death is a new story.
HEALTHY_SECONDS = 10.0

# Ask the kernel without waiting, and leave the ended child to be reaped.
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT

LOG_BYTES = 10 * 1024 * 1024
UPKEEP_SECONDS = 0.25


class Stopped(Exception):
    """Somebody asked the supervisor to stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What the next supervisor has to know of a program that it did not start."""

    identity: Identity
    signal: signal.Signals

    @classmethod
    def read(cls, path: Path) -> Self:
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
        return self.restart_at is None


def delay(deaths: int) -> float:
    """Return how long to wait after so many deaths in a row."""
    return float(min(FIRST_DELAY * 2 ** (deaths - 1), LONGEST_DELAY))


class Supervisor:
    """Run programs from one thread; its signals and its orphans are the process's."""

    def __init__(self, *, root: Path, var: Path) -> None:
        self._root = root
        self._mark = {MARK: str(var)}
        self._run = var / "run"
        self._logs = var / "log"
        self._children: dict[str, Child] = {}
        self._stages: list[list[str]] = []
        # A process whose end is awaited by `run`, so that nobody else may reap it.
        self._errand = 0
        self._asked = False
        self._waker, self._wakeup = socket.socketpair()
        self._take_over_process()

    def _take_over_process(self) -> None:
        for end in (self._waker, self._wakeup):
            end.settimeout(0)
        signal.set_wakeup_fd(self._wakeup.fileno())
        for number in STOPPING:
            signal.signal(number, self._ask)
        if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise CannotStart("This system cannot hand orphans to the supervisor.")

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def start(self, programs: Sequence[Program]) -> None:
        """Start programs that will also be stopped together, before earlier ones."""
        self._stages.append([])
        for program in programs:
            self._children[program.name] = self._launch(program)
            self._stages[-1].append(program.name)

    def until_ready(self, *, seconds: float) -> None:
        """Wait for all to serve; raise CannotStart when one dies or is late."""
        waiting = dict(self._children)
        deadline = time.monotonic() + seconds
        while waiting:
            self.pause(processes.POLL_SECONDS)
            for name, child in list(waiting.items()):
                if child.deaths or time.monotonic() > deadline:
                    raise CannotStart(self._complaint(name, "did not start"))
                if child.program.ready(child.process.pid):
                    del waiting[name]

    def run(self, program: Program) -> None:
        """Run `program` to its end; raise CannotStart when it fails."""
        child = self._launch(program)
        self._errand = child.process.pid
        while not _has_ended(child.process.pid):
            self.pause(UPKEEP_SECONDS)
        if self._clear(child):
            raise CannotStart(self._complaint(program.name, "failed"))

    def supervise(self) -> None:
        """Restart what dies, until somebody asks to stop."""
        with suppress(Stopped):
            while True:
                self.pause(UPKEEP_SECONDS)
                self._rotate()

    def pause(self, seconds: float) -> None:
        """Wait a little, with an eye on the children; raise Stopped when asked to."""
        ready, _, _ = select.select([self._waker], [], [], seconds)
        if ready:
            self._waker.recv(4096)
        if self._asked:
            raise Stopped
        self._reap()
        self._restart()

    def stop(self) -> None:
        """Stop what was started last first, then kill who hid from his group."""
        for stage in reversed(self._stages):
            self._stop(stage)
        self._stages.clear()
        while left := processes.children():
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            for pid in left:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _stop(self, names: Sequence[str]) -> None:
        children = [self._children.pop(name, None) for name in names]
        going = [child for child in children if child and child.running]
        for child in going:
            processes.send(child.process.pid, child.program.stop_signal)
        asked = time.monotonic()
        for child in going:
            left = asked + child.program.grace - time.monotonic()
            _until(partial(_has_ended, child.process.pid), seconds=left)
            self._clear(child)

    def _launch(self, program: Program) -> Child:
        process = self._spawn(program)
        return Child(program=program, process=process, started=time.monotonic())

    def _spawn(self, program: Program) -> subprocess.Popen[bytes]:
        log = self.log(program.name)
        marked = replace(program, environment={**program.environment, **self._mark})
        process = processes.spawn(marked, folder=self._root, log=log)
        try:
            self._note(program, process.pid)
        except OSError:
            processes.kill_group(process.pid)
            process.wait()
            raise
        return process

    def _note(self, program: Program, pid: int) -> None:
        identity = Identity.of(pid)
        if identity is not None:
            note = Note(identity=identity, signal=program.stop_signal)
            write_private(self._note_file(program.name), note.to_json())

    def _note_file(self, name: str) -> Path:
        return self._run / f"{name}.pid"

    def _reap(self) -> None:
        leaders = {
            child.process.pid: child
            for child in self._children.values()
            if child.running
        }
        with suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, ENDED):
                if ended.si_pid == self._errand:
                    return
                if ended.si_pid in leaders:
                    self._bury(leaders.pop(ended.si_pid))
                else:
                    os.waitpid(ended.si_pid, 0)

    def _bury(self, child: Child) -> None:
        code = self._clear(child)
        if child.program.once and code == 0:
            del self._children[child.program.name]
            return
        lived = time.monotonic() - child.started
        child.deaths = 1 if lived > HEALTHY_SECONDS else child.deaths + 1
        self._put_off(child, why=_describe(code))

    def _clear(self, child: Child) -> int:
        # The group first: its number is ours for as long as the leader is not reaped.
        processes.kill_group(child.process.pid)
        code = child.process.wait()
        self._note_file(child.program.name).unlink(missing_ok=True)
        return code

    def _put_off(self, child: Child, *, why: str) -> None:
        seconds = delay(child.deaths)
        child.restart_at = time.monotonic() + seconds
        logger.warning(
            "%s ended (%s); it starts again in %.1f s", child.program.name, why, seconds
        )

    def _restart(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.restart_at is not None and now >= child.restart_at:
                self._relaunch(child)

    def _relaunch(self, child: Child) -> None:
        try:
            child.process = self._spawn(child.program)
        except OSError as problem:
            # A full disk or a full process table passes; we have to outlive it.
            child.deaths += 1
            self._put_off(child, why=str(problem))
        else:
            child.started = time.monotonic()
            child.restart_at = None

    def _rotate(self) -> None:
        for log in self._logs.glob("*.log"):
            if log.stat().st_size > LOG_BYTES:
                # On a full disk the lines to come are worth more than the old ones.
                with suppress(OSError):
                    shutil.copyfile(log, log.with_suffix(".log.1"))
                # The writer appends, so it goes on at the new end.
                os.truncate(log, 0)

    def _complaint(self, name: str, what: str) -> str:
        log = self.log(name)
        return f"{name} {what}: {processes.last_line(log)} (more in {log})"


def recover(var: Path, *, seconds: float = 5.0) -> None:
    """End what a killed supervisor left of its programs."""
    notes = {path: Note.read(path) for path in (var / "run").glob("*.pid")}
    alive = [note for note in notes.values() if note.identity.alive]
    for note in alive:
        processes.send(note.identity.pid, note.signal)
    _until(lambda: not any(note.identity.alive for note in alive), seconds=seconds)
    for note in alive:
        if note.identity.alive:
            processes.kill_group(note.identity.pid)
    _kill_marked(var)
    for path in notes:
        path.unlink()


def _kill_marked(var: Path) -> None:
    """Kill what is left of programs of this `var`, whatever group it went to."""
    mark = os.fsencode(f"{MARK}={var}")
    for pid in processes.everybody():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            environment = (processes.PROC / str(pid) / "environ").read_bytes()
            if mark in environment.split(b"\0"):
                processes.send(pid, signal.SIGKILL)


def _until(done: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(processes.POLL_SECONDS)


def _has_ended(pid: int) -> bool:
    """Tell whether a child has ended, and leave it to be reaped."""
    try:
        return os.waitid(os.P_PID, pid, ENDED) is not None
    except ChildProcessError:
        return False


def _describe(code: int) -> str:
    return (
        f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    )
