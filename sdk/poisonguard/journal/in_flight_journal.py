"""The journal of one consumer process: its messages in flight.

The guard stores a message's number before its handler runs, and 0 when it is done:
8 bytes in a mapped file, without a system call. However the process ends, the kernel
keeps the pages, and the next start of the same consumer reads what was in flight.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from poisonguard.errors import Misconfigured
from poisonguard.journal import journal_binary_format
from poisonguard.journal.failed_attempts_store import Attempts
from poisonguard.journal.journal_binary_format import SLOT_LIMIT, EndingKind, OwnerState
from poisonguard.journal.journal_folder import AUTO, UnusableFolder, prepare
from poisonguard.journal.mapped_journal_file import JournalSlots, MappedJournal
from poisonguard.journal.orphaned_journals import OrphanRecovery
from poisonguard.journal.process_death_blame import Death
from poisonguard.processes import thread_stack_dump

log = logging.getLogger(__name__)


class SlotNumbers(Protocol):
    """The numbers of the messages in flight, by slot."""

    def __getitem__(self, slot: int, /) -> int: ...
    def __setitem__(self, slot: int, number: int, /) -> None: ...


class Journal:
    """The journal of one process; a `folder` of None turns crash attribution off.

    "auto" is the supervisor's folder, or a folder of this user in memory. Where no
    journal can be kept, the consumer runs without one; the log and `facts` say so.

    The healthy path only stores `words[slot] = number` before the handler and
    `words[slot] = 0` after it. Read `words` from the journal each time: a forked child
    gets its own journal at its first store.
    """

    words: SlotNumbers

    def __init__(
        self,
        folder: Path | str | None = AUTO,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),  # noqa: TID251
    ) -> None:
        self.attempts = Attempts()  # after open(), in a file there
        self.deaths: list[Death] = []  # the dead processes that open() found
        self.folder: Path | None = None  # None: no crash attribution
        self.problems: list[str] = []
        # Called in a forked child at its first store.
        self.reopened: list[Callable[[], None]] = []
        self._requested_folder = folder
        self._clock = clock
        self._name = b""
        self._file: MappedJournal | None = None
        self._count = 1
        self._lock = threading.Lock()
        self._use_slots(JournalSlots.private(1))

    def open(self, *, name: str, slots: int = 1) -> None:
        """Settle earlier deaths under this name and start the journal; raise Full.

        `name` identifies the consumer: topic, consumer group and client name.
        """
        if not 0 < slots <= SLOT_LIMIT:
            raise Misconfigured(
                f"{slots} messages in flight are asked for: 1 to {SLOT_LIMIT} can be."
            )
        self._name = journal_binary_format.name_digest(name)
        self._count = slots
        self.folder = None
        for last_time in (self.deaths, self.problems, self.reopened):
            last_time.clear()
        self._use_slots(JournalSlots.private(slots))
        if self._requested_folder is None:
            return
        try:
            self.folder = prepare(self._requested_folder)
            file = self.folder / f"{journal_binary_format.stem(self._name)}.attempts"
            self.attempts = Attempts(file)
            self._start(self.folder)
        except (UnusableFolder, Misconfigured, OSError) as problem:
            self.attempts = Attempts()
            self._go_on_without_file(problem)

    def beat(self, slot: int) -> None:
        """Restart the hang timer of a message's slot in the journal.

        The guard calls it before each attempt, as a retry puts the same number into the
        slot; a handler that takes long may call it, too.
        """
        self.slots.beats[slot] += 1

    def stopping(self) -> None:
        """Mark this process as told to stop: no message is charged from here on."""
        self.slots.set_state(OwnerState.STOPPING)

    def hangs(self, slots: Sequence[int], *, seconds: float) -> None:
        """Record in the journal that the messages in these slots hang.

        That is noted as how the process ends; the caller ends it.
        """
        for slot in slots:
            self.slots.hung[slot] = self.words[slot]
        if self._file is not None:
            milliseconds = round(1000 * seconds)
            self._file.write_ending(EndingKind.HANG, milliseconds, self._clock())

    def facts(self) -> dict[str, object]:
        """Return the state of the journal of messages in flight, for guard.health()."""
        return {
            "journal": self.folder is not None,
            "folder": str(self.folder) if self.folder else None,
            "slots": self._count,
            "deaths": len(self.deaths),
            "suspects": len(self.attempts.suspects - self.attempts.given_up),
            "problems": [*self.problems, *self.attempts.problems],
        }

    def close(self) -> None:
        """Close the journal of messages in flight, and delete its file.

        It stays for the next start if a message is in flight and this process was not
        told to stop.
        """
        with _opening:
            self._close_file()
        self.attempts.close()

    def detach(self) -> None:
        """Leave the journal to the parent; called in a forked child."""
        self._lock = threading.Lock()
        if self._file is not None:
            self._file.leave_to_parent()
            self._file = None
            self.slots = JournalSlots.private(self._count)
            self.words = _FirstStore(self)

    def reopen(self) -> None:
        """Start this forked child's own journal, once."""
        with self._lock:
            if self.folder is None or self._file is not None:
                return
            was_stopping = self.slots.state[0] == OwnerState.STOPPING
            try:
                self._start(self.folder)
            except (UnusableFolder, Misconfigured, OSError) as problem:
                self._go_on_without_file(problem)
        if was_stopping:
            self.stopping()
        for call in self.reopened:
            call()

    @property
    def path(self) -> Path | None:
        """Return the path of the journal's file, if there is one."""
        return self._file.path if self._file else None

    def _start(self, folder: Path) -> None:
        """Settle earlier deaths, create this process's journal and use its slots."""
        now = self._clock()
        # Of two starts in one process, the second must know the first one's file.
        with _opening:
            self.attempts.open(now=now)
            recovery = OrphanRecovery(
                folder=folder, name=self._name, attempts=self.attempts, now=now
            )
            recovery.run(own={j.path.name for j in _live if j.path})
            self.deaths += recovery.deaths
            self.problems += recovery.problems
            self._file = MappedJournal.create(folder, self._name, self._count)
            _live.add(self)
        thread_stack_dump.listen(folder, self._file.owner)
        self._use_slots(self._file.slots)

    def _use_slots(self, slots: JournalSlots) -> None:
        """Store the numbers of messages in these journal slots from now on."""
        self.slots = slots
        self.words = slots.words

    def _go_on_without_file(self, problem: Exception) -> None:
        """Go on without a journal file: use private slots, note and log why."""
        text = f"Crashes are not attributed to messages: {problem}"
        self.folder = None
        self._use_slots(JournalSlots.private(self._count))
        self.problems.append(text)
        log.warning(text)

    def _close_file(self) -> None:
        """Close the journal file; delete it unless a message is in flight in it."""
        _live.discard(self)
        file, self._file = self._file, None
        if file is None or self.folder is None:
            return
        remove = not file.slots.is_blameable()
        self._use_slots(JournalSlots.private(self._count))
        file.close(remove=remove)
        if not any(journal.path for journal in _live):
            thread_stack_dump.unlisten(self.folder, file.owner)


class _FirstStore:
    """Replace `words` in a forked child until it stores a number."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getitem__(self, slot: int) -> int:
        return 0

    def __setitem__(self, slot: int, number: int) -> None:
        if number:
            self._journal.reopen()
            self._journal.words[slot] = number


# The journals of this process: opening and closing one again would drop its lock.
_live: WeakSet[Journal] = WeakSet()
_opening = threading.Lock()


def _after_fork_in_child() -> None:
    """Release the lock taken before the fork, and leave all journals to the parent."""
    _opening.release()
    for journal in list(_live):
        journal.detach()


os.register_at_fork(
    before=_opening.acquire,
    after_in_parent=_opening.release,
    after_in_child=_after_fork_in_child,
)
