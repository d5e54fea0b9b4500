"""Run a consumer, start it again when it dies, and end it when its handler hangs.

`python -m poisonguard run -- CMD` is for consumers without another supervisor, and for
exact causes of death: it sees the exit code or signal, knows which process was told to
stop, and detects a hang that no thread of the hanging process could see.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from poisonguard.errors import GuardError
from poisonguard.journal import journal_binary_format, journal_folder
from poisonguard.journal.journal_binary_format import (
    SUFFIX,
    EndingKind,
    JournalSnapshot,
    OwnerState,
    UnreadableJournal,
)
from poisonguard.journal.process_death_blame import signal_name
from poisonguard.policy import double_pause
from poisonguard.processes import kernel_process_facts, thread_stack_dump
from poisonguard.processes.kernel_process_facts import Identity
from poisonguard.supervision.watchdog import HangDetector, interval

log = logging.getLogger("poisonguard")

HELP = "run a consumer, start it again when it dies, end it when it hangs"
NOT_STARTED = 127
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Signals that Python ignores for itself; the command gets their defaults.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 30.0
# A message that kills is poisoned after a few deaths: restart fast for those. A
# consumer that goes on dying is sick itself: a fast death may charge a good message.
FAST_DEATHS = 10
STEADY_SECONDS = 10.0  # after so long a run, deaths count from 0
IDLE_SECONDS = 60.0
STACKS_SECONDS = 2.0
STACKS_POLL = 0.02

SlotKey = tuple[Path, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedCommand:
    """The command to run, and its time limits."""

    command: tuple[str, ...]
    folder: Path
    handler_timeout: float | None
    grace: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandExit:
    """How one run of the command ended; `code` is negative for a signal."""

    code: int
    mid_message: bool

    @property
    def is_done(self) -> bool:
        """Tell whether a supervised consumer ended with 0, and between messages."""
        return self.code == 0 and not self.mid_message

    @property
    def exit_code(self) -> int:
        """Return the command's exit code for a shell: 128 + n after signal n."""
        return self.code if self.code >= 0 else 128 - self.code


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments of `poisonguard run`, which supervises a consumer."""
    parser.add_argument(
        "--handler-timeout",
        type=float,
        metavar="S",
        help="a handler at one message for longer is stuck and killed",
    )
    parser.add_argument(
        "--journal",
        default=journal_folder.AUTO,
        metavar="DIR",
        help="where Journal('auto') keeps its files (made if need be)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds between a forwarded SIGTERM and SIGKILL (30)",
    )
    parser.add_argument("cmd", nargs=REMAINDER, metavar="-- CMD", help="the consumer")


def main(arguments: Namespace) -> int:
    """Supervise a command until it is done or a stop signal; return its code."""
    logging.basicConfig(level=logging.INFO, format="poisonguard: %(message)s")
    try:
        plan = _plan(arguments)
    except (journal_folder.UnusableFolder, GuardError) as problem:
        sys.stderr.write(f"poisonguard: {problem}\n")
        return 2
    return Supervisor(plan).run()


def _plan(arguments: Namespace) -> SupervisedCommand:
    """Read the arguments of `run`, create the journals' folder; raise if unusable."""
    command = arguments.cmd[1:] if arguments.cmd[:1] == ["--"] else arguments.cmd
    if not command:
        raise journal_folder.UnusableFolder(
            "Name what to run: `run -- python consumer.py`."
        )
    if arguments.handler_timeout is not None:
        interval(arguments.handler_timeout)
    return SupervisedCommand(
        command=tuple(command),
        folder=journal_folder.prepare(arguments.journal),
        handler_timeout=arguments.handler_timeout,
        grace=arguments.grace,
    )


class Supervisor:
    """Run one command again and again until it is done or we must stop."""

    def __init__(self, plan: SupervisedCommand) -> None:
        self._plan = plan
        self._journals = Journals(plan.folder)
        self._stopping = False
        # Ignored signals stay ignored: nohup, or a shell that started us with `&`.
        stops = [n for n in STOPS if signal.getsignal(n) is not signal.SIG_IGN]
        self._watched = (signal.SIGCHLD, *stops)

    def run(self) -> int:
        """Run the consumer's command again and again until it is done or we must stop.

        Return the exit code of its last run.
        """
        # Blocked, and taken by sigtimedwait: no call is interrupted, no signal missed.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._watched)
        deaths = 0
        while True:
            started = time.monotonic()
            try:
                child = self._spawn()
            except OSError as error:
                name = self._plan.command[0]
                sys.stderr.write(f"poisonguard: {name} cannot run: {error.strerror}\n")
                return NOT_STARTED
            ending = self._until_end(child)
            deaths = 0 if time.monotonic() - started > STEADY_SECONDS else deaths + 1
            if not ending.is_done:
                self._pause(pause_after(deaths))
            if ending.is_done or self._stopping:
                return ending.exit_code

    def _until_end(self, child: Identity) -> CommandExit:
        """Wait until the supervised child ends; record, log and return how."""
        code = self._wait_for_exit(child)
        ending = CommandExit(
            code=code, mid_message=self._journals.record_end(child, code)
        )
        log.info(
            "process %d ended with %s%s",
            child.pid,
            f"exit code {code}" if code >= 0 else signal_name(-code),
            ", at work on a message" if ending.mid_message else "",
        )
        return ending

    def _spawn(self) -> Identity:
        """Start the command in a process group of its own; return its identity."""
        environment = {
            **os.environ,
            journal_folder.VARIABLE: str(self._plan.folder),
            thread_stack_dump.SUPERVISOR_VARIABLE: str(os.getpid()),
        }
        pid = os.posix_spawnp(
            self._plan.command[0],
            self._plan.command,
            environment,
            # Its own group: a terminal's signals reach it only through us.
            setpgroup=0,
            setsigmask=[],
            setsigdef=RESTORED,
        )
        return Identity(
            pid=pid,
            started=kernel_process_facts.start_time(pid) or 0,
            boot=kernel_process_facts.boot(),
        )

    def _wait_for_exit(self, child: Identity) -> int:
        """Wait until the supervised child ends; return its exit code, or -signal."""
        limit = self._plan.handler_timeout
        detector: HangDetector[SlotKey] | None = HangDetector(limit) if limit else None
        killed_at = float("inf")
        while (code := _reap(child.pid)) is None:
            seconds = interval(limit) if limit else IDLE_SECONDS
            remaining = max(killed_at - time.monotonic(), 0.0)
            came = signal.sigtimedwait(self._watched, min(seconds, remaining))
            if came is not None and came.si_signo != signal.SIGCHLD:
                self._forward(child, came.si_signo)
                killed_at = min(killed_at, time.monotonic() + self._plan.grace)
            if time.monotonic() >= killed_at:
                log.warning("process %d did not stop in time: killed", child.pid)
                _kill_group(child)
                killed_at = float("inf")
            if limit and detector and not self._stopping:
                self._journals.end_hangs(child, detector, limit)
        return code

    def _forward(self, child: Identity, number: int) -> None:
        """Mark the child's journals as told to stop, and pass the signal on to it."""
        self._stopping = True
        self._journals.mark_stopping(child)
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def _pause(self, seconds: float) -> None:
        """Wait before the child's next start; a stop signal ends wait and `run`."""
        until = time.monotonic() + seconds
        while not self._stopping and (remaining := until - time.monotonic()) > 0:
            came = signal.sigtimedwait(self._watched, remaining)
            self._stopping = came is not None and came.si_signo != signal.SIGCHLD


class Journals:
    """The journals in one folder, for the supervisor of their owners."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def mark_stopping(self, child: Identity) -> None:
        """Mark the child as told to stop: its end charges no message."""
        for path, _ in self._journals_of_running(child):
            _edit(path, journal_binary_format.write_stopping)

    def record_end(self, child: Identity, code: int) -> bool:
        """Record how the child ended; return whether a message was in flight."""
        mid_message = False
        for path, snapshot in self._all():
            if snapshot.header.owner != child:
                continue
            if snapshot.ending.kind is EndingKind.UNSEEN:
                _write_ending(path, _ending_kind(code, snapshot), abs(code))
            mid_message |= (
                bool(snapshot.in_flight) and snapshot.state != OwnerState.STOPPING
            )
        return mid_message

    def end_hangs(
        self, child: Identity, detector: HangDetector[SlotKey], seconds: float
    ) -> None:
        """Kill processes that hang at one message, after they wrote their stacks."""
        journals = dict(self._journals_of_running(child))
        slots = [
            ((path, slot), work)
            for path, snapshot in journals.items()
            for slot, work in enumerate(
                zip(snapshot.words, snapshot.beats, strict=True)
            )
        ]
        stuck = detector.stuck(slots, now=time.monotonic())
        for path, slot in stuck:
            snapshot = journals[path]
            hung = partial(
                journal_binary_format.write_hung,
                header=snapshot.header,
                slot=slot,
                number=snapshot.words[slot],
            )
            _edit(path, hung)
            _write_ending(path, EndingKind.HANG, round(1000 * seconds))
        for owner in {journals[path].header.owner for path, _ in stuck}:
            self._kill(owner, seconds)

    def _kill(self, owner: Identity, seconds: float) -> None:
        """Have a hanging process write its stacks, then kill and log it."""
        log.error("a handler of process %d is stuck for %g s", owner.pid, seconds)
        until = time.monotonic() + STACKS_SECONDS
        _send_signal(owner, thread_stack_dump.SIGNAL)
        # The process writes them in C and cannot tell when it is done: wait until the
        # text no longer grows.
        text, before = "", None
        while time.monotonic() < until and (not text or text != before):
            time.sleep(STACKS_POLL)
            text, before = thread_stack_dump.read(self._folder, owner), text
        _send_signal(owner, signal.SIGKILL)
        log.error("killed process %d, which was here:\n%s", owner.pid, text or "?")

    def _journals_of_running(
        self, child: Identity
    ) -> Iterator[tuple[Path, JournalSnapshot]]:
        """Yield the journals of the running child and its forked children."""
        for path, snapshot in self._all():
            owner = snapshot.header.owner
            with suppress(ProcessLookupError):
                if _is_running(owner) and os.getpgid(owner.pid) == child.pid:
                    yield path, snapshot

    def _all(self) -> Iterator[tuple[Path, JournalSnapshot]]:
        """Yield each readable journal of the folder, with its content."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            snapshot = _read(path)
            if snapshot is not None:
                yield path, snapshot


@contextmanager
def _open_journal(path: Path) -> Iterator[int]:
    """Open a journal during the block, following no link; yield its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(path: Path) -> JournalSnapshot | None:
    """Read a consumer's journal; None where it is gone or cannot be read."""
    # Unreadable journals are reported at the next start of their consumer.
    with suppress(OSError, UnreadableJournal), _open_journal(path) as fd:
        return journal_binary_format.read(fd)
    return None


def _edit(path: Path, write: Callable[[int], None]) -> None:
    """Have `write` change a journal, given its descriptor; do nothing if it is gone."""
    # It may be gone, settled by another starting process of this consumer.
    with suppress(FileNotFoundError), _open_journal(path) as fd:
        write(fd)


def _write_ending(path: Path, kind: EndingKind, value: int) -> None:
    """Record in a journal how its owner ended, as of now."""
    at = datetime.now(UTC)  # noqa: TID251 - a process without an injected clock
    _edit(
        path, partial(journal_binary_format.write_ending, kind=kind, value=value, at=at)
    )


def _ending_kind(code: int, snapshot: JournalSnapshot) -> EndingKind:
    """Return how a child ended: by an exit, a signal, or a kill for lack of memory."""
    if code >= 0:
        return EndingKind.EXIT
    killed = kernel_process_facts.oom_kills() > snapshot.header.oom_kills
    if code == -signal.SIGKILL and killed:
        return EndingKind.MEMORY
    return EndingKind.SIGNAL


def _reap(pid: int) -> int | None:
    """Reap all dead children, adopted ones too; return the exit code of `pid`."""
    code = None
    with suppress(ChildProcessError):
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            if dead[0] == pid:
                code = os.waitstatus_to_exitcode(dead[1])
    return code


def _is_running(owner: Identity) -> bool:
    """Tell whether this very process runs, and not another with its pid."""
    return (
        owner.boot == kernel_process_facts.boot()
        and kernel_process_facts.start_time(owner.pid) == owner.started
    )


def _send_signal(owner: Identity, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError):
        if _is_running(owner):
            os.kill(owner.pid, number)


def _kill_group(child: Identity) -> None:
    """Kill the process group of a child, unless it has ended."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def pause_after(deaths: int) -> float:
    """Return the seconds to wait before a restart, after so many deaths in a row."""
    longest = double_pause(FIRST_PAUSE, max(deaths - FAST_DEATHS, 0), cap=LONGEST_PAUSE)
    # Randomised, so that consumers that died together do not restart together.
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
