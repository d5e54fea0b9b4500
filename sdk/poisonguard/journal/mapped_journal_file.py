"""The journal file of this process, locked and mapped into memory."""

from __future__ import annotations

import mmap
import os
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Self

from poisonguard.errors import Full
from poisonguard.journal import journal_binary_format
from poisonguard.journal.journal_binary_format import EndingKind, Header, OwnerState
from poisonguard.journal.journal_folder import NO_ROOM
from poisonguard.processes import kernel_process_facts
from poisonguard.processes.kernel_process_facts import Identity
from poisonguard.processes.linux_only_fcntl import fcntl

CREATE_ATTEMPTS = 20


class JournalSlots:
    """The slots of a journal, in mapped or private memory."""

    def __init__(self, memory: memoryview, slots: int) -> None:
        # The same as "Q" on 64 bits, but Python stores these numbers faster.
        whole = memory.cast("L")
        first = journal_binary_format.HEADER // journal_binary_format.WORD
        state = journal_binary_format.STATE_AT // journal_binary_format.WORD
        self.words = whole[first : first + slots]
        self.beats = whole[first + slots : first + 2 * slots]
        self.hung = whole[first + 2 * slots : first + 3 * slots]
        self.state = whole[state : state + 1]
        self._views = (self.words, self.beats, self.hung, self.state, whole, memory)

    @classmethod
    def private(cls, slots: int) -> Self:
        """Return journal slots in private memory, which other processes cannot see."""
        size = journal_binary_format.HEADER + 3 * journal_binary_format.WORD * slots
        return cls(memoryview(bytearray(size)), slots)

    def set_state(self, state: OwnerState) -> None:
        self.state[0] = state

    def is_blameable(self) -> bool:
        """Tell whether messages are in flight in a process not told to stop."""
        return self.state[0] != OwnerState.STOPPING and any(self.words)

    def release(self) -> None:
        """Release the views of the journal's slots, so that it can be unmapped."""
        for view in self._views:
            view.release()


class MappedJournal:
    """A journal file and the lock on it, which lasts as long as this process.

    It is a lockf lock: a forked child does not inherit it, and it is lost with the
    first close of the file, so this process must not open the file again.
    """

    def __init__(self, path: Path, fd: int, header: Header) -> None:
        self.path = path
        self.owner = header.owner
        self._fd = fd
        self._map = mmap.mmap(fd, header.size, mmap.MAP_SHARED)
        self.slots = JournalSlots(memoryview(self._map), header.slots)

    @classmethod
    def create(cls, folder: Path, name: bytes, slots: int) -> Self:
        """Create the journal of this process; raise Full, or another OSError."""
        header = Header(
            slots=slots,
            owner=Identity.own(),
            incarnation=uuid.uuid4(),
            name=name,
            oom_kills=kernel_process_facts.oom_kills(),
        )
        path = folder / journal_binary_format.file_name(name, header.incarnation)
        try:
            return cls._filled(path, header)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno not in NO_ROOM:
                raise
            raise Full(
                f"{folder} has no room for a journal of {header.size} bytes: make "
                "room there, or give the journal another folder."
            ) from error

    @classmethod
    def _filled(cls, path: Path, header: Header) -> Self:
        """Create the journal file, allocate it whole, write its header, and map it."""
        fd = _created(path)
        try:
            # Allocate all now: a hole that cannot be filled later would be a SIGBUS.
            os.posix_fallocate(fd, 0, header.size)
            os.pwrite(fd, header.packed(), 0)
            return cls(path, fd, header)
        except OSError:
            os.close(fd)
            raise

    def write_ending(self, kind: EndingKind, value: int, at: datetime) -> None:
        """Record in the journal how this process ends, and when."""
        journal_binary_format.write_ending(self._fd, kind, value, at)

    def close(self, *, remove: bool) -> None:
        """Close the journal file and, with `remove`, delete it."""
        if remove:
            self.path.unlink(missing_ok=True)
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Close the journal's memory and file in a forked child."""
        self.slots.release()
        self._map.close()
        os.close(self._fd)


def _created(path: Path) -> int:
    """Create and lock a new journal at `path`; return its descriptor.

    Between the two steps another process may take it for an orphan and remove it; then
    it is created again.
    """
    for _ in range(CREATE_ATTEMPTS):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
        os.close(fd)
        path.unlink(missing_ok=True)
    raise OSError(f"{path} is removed as often as it is made: by whom?")
