"""Settle the journals that dead processes of the same consumer left behind.

A death is settled in steps, and a kill between any two of them neither loses a charge
nor charges a message twice: lock the orphaned journal (one of several starting
processes gets it), read it, commit the death and its charges in one transaction that
counts each death once, unlink the journal, release the lock.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from errno import EISDIR, ELOOP, ENXIO
from pathlib import Path
from typing import TYPE_CHECKING

from poisonguard.journal import journal_binary_format, process_death_blame
from poisonguard.journal.journal_binary_format import (
    EndingKind,
    JournalSnapshot,
    Newer,
    Truncated,
    UnreadableJournal,
    Unstarted,
)
from poisonguard.processes import kernel_process_facts, thread_stack_dump
from poisonguard.processes.kernel_process_facts import Identity
from poisonguard.processes.linux_only_fcntl import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poisonguard.journal.failed_attempts_store import Attempts
    from poisonguard.journal.process_death_blame import Death

log = logging.getLogger(__name__)

LOCK_SUFFIX = ".adoption"
# As long as a process waits for the attempts file.
LOCK_SECONDS = 30.0
LOCK_POLL = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class OrphanRecovery:
    """Settle the deaths of the consumer called `name`, in `attempts`."""

    folder: Path
    name: bytes
    attempts: Attempts
    now: datetime
    deaths: list[Death] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self, *, own: Collection[str]) -> None:
        """Settle all orphaned journals; skip `own`, whose locks opening would drop.

        What another process of this name is settling is settled on return: it is
        locked meanwhile, like the journal of a running process.
        """
        stem = journal_binary_format.stem(self.name)
        with _recovery_lock(self.folder / f"{stem}{LOCK_SUFFIX}"):
            self._settle_all(f"{stem}-*{journal_binary_format.SUFFIX}", own)
            self.attempts.refresh()

    def _settle_all(self, pattern: str, own: Collection[str]) -> None:
        """Settle each matching journal that no process owns; note problems."""
        for path in sorted(self.folder.glob(pattern)):
            if path.name in own:
                continue
            try:
                with _locked(path) as fd:
                    if fd is not None:
                        self._settle(path, fd)
            except UnsettledJournal as problem:
                self._note_problem(str(problem))

    def _settle(self, path: Path, fd: int) -> None:
        """Charge the death in an orphaned journal and delete it.

        Raise UnsettledJournal for a journal that charges nothing.
        """
        try:
            snapshot = journal_binary_format.read(fd)
        except Unstarted:
            path.unlink(missing_ok=True)
            return
        except Truncated:
            path.unlink(missing_ok=True)
            raise UnsettledJournal(
                f"{path} was cut short, so no message is charged for its death; it is "
                "removed. Look for what empties files there."
            ) from None
        except Newer:
            raise UnsettledJournal(
                f"{path} was written by a newer poisonguard and left alone: upgrade "
                "this consumer, or remove the file."
            ) from None
        except UnreadableJournal:
            raise UnsettledJournal(
                f"{path} is not a journal and was left alone: remove it."
            ) from None
        if _is_alive(snapshot.header.owner, path):
            raise UnsettledJournal(
                f"{path} has lost its lock while process {snapshot.header.owner.pid}"
                " runs on, and was left alone: nothing else may open that file there."
            )
        self._settle_death(path, snapshot)

    def _settle_death(self, path: Path, snapshot: JournalSnapshot) -> None:
        """Charge the messages in flight with the death, and delete the journal."""
        owner = snapshot.header.owner
        thread_stacks = thread_stack_dump.read(self.folder, owner)
        verdict = process_death_blame.judge(
            snapshot,
            boot=kernel_process_facts.boot(),
            oom_kills=kernel_process_facts.oom_kills(),
            at=self.now,
            stacks=thread_stacks,
        )
        if verdict.numbers:
            self.attempts.blame(verdict)
            self.deaths.append(verdict)
            log.warning(
                "process %d died with messages in flight: %s (%s, numbers %s)",
                owner.pid,
                verdict.reason,
                verdict.blame.name.lower(),
                ", ".join(map(str, verdict.numbers)),
            )
        path.unlink(missing_ok=True)
        # A process may have several journals, and another one may record the hang.
        if snapshot.ending.kind is EndingKind.HANG or not thread_stacks:
            thread_stack_dump.remove(self.folder, owner)

    def _note_problem(self, problem: str) -> None:
        """Log a problem of an orphaned journal, and add it to `problems`."""
        self.problems.append(problem)
        log.warning(problem)


class UnsettledJournal(Exception):
    """The journal attributes no crash; the message says what to do."""


@contextmanager
def _recovery_lock(lock: Path) -> Iterator[None]:
    """Lock the recovery of orphaned journals; go on without after LOCK_SECONDS."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(lock, flags, 0o600)
    try:
        until = time.monotonic() + LOCK_SECONDS
        while not _try_lock(fd) and time.monotonic() < until:
            time.sleep(LOCK_POLL)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    """Try to lock a file, without waiting; return whether that worked."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Open and lock a journal; yield None where a process owns or settled it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise _not_opened(path, error) from error
    try:
        yield fd if _try_lock_own(path, fd) else None
    finally:
        os.close(fd)


def _try_lock_own(path: Path, fd: int) -> bool:
    """Lock a journal; False where a process has it. Raise UnsettledJournal if alien."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise UnsettledJournal(f"{path} is not a file: remove it.")
    if status.st_uid != os.geteuid():
        raise UnsettledJournal(
            f"{path} belongs to another user (uid {status.st_uid}) and was left alone: "
            "remove it, or give this consumer a folder of its own."
        )
    # The previous holder of the lock may have settled and unlinked it.
    return _try_lock(fd) and os.fstat(fd).st_nlink > 0


def _not_opened(path: Path, error: OSError) -> UnsettledJournal:
    """Return the error for a journal that cannot be opened."""
    if error.errno in (EISDIR, ELOOP, ENXIO):
        return UnsettledJournal(f"{path} is not a file: remove it.")
    return UnsettledJournal(
        f"{path} cannot be opened ({error.strerror}) and was left alone: remove it, or "
        "make it this user's own."
    )


def _is_alive(owner: Identity, path: Path) -> bool:
    """Tell whether a journal's owner still runs, though its lock is gone.

    After execv it has the same pid and start time, but does not map the file.
    """
    if owner.boot != kernel_process_facts.boot():
        return False
    if kernel_process_facts.start_time(owner.pid) != owner.started:
        return False
    mapped = kernel_process_facts.has_mapped(owner.pid, path.name, path.stat().st_ino)
    return owner.pid != os.getpid() if mapped is None else mapped
