"""Concurrency slots: many messages run at once, but a suspect runs alone.

A message suspected of killing its process runs alone: if the process dies again, there
is no doubt which message was in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from poisonguard.handling.handled_counts_and_durations import Slot

Numbering = Callable[[Any], int]


class Gate:
    """Open and close the healthy path, which calls nothing but `numbering`.

    While the gate is open, `numbering` is the function that `choose` returned: it
    numbers ordinary messages and returns 0 for those that need the slow path. While it
    is closed, all need it. It may be closed for several reasons at once, and opens when
    the last reason is removed.
    """

    numbering: Numbering

    def __init__(
        self, *reasons: str, choose: Callable[[], Numbering] = lambda: _number_none
    ) -> None:
        self._choose = choose
        self.reset_after_fork(*reasons)

    def reset_after_fork(self, *reasons: str) -> None:
        """Close the healthy path's gate for these reasons only, with a new lock."""
        self._lock = threading.Lock()
        self._reasons = set(reasons)
        self.choose_numbering()

    @property
    def is_open(self) -> bool:
        """Tell whether nothing closes the gate of the healthy path."""
        return not self._reasons

    def is_closed_by(self, reason: str) -> bool:
        """Tell whether this reason closes the gate of the healthy path at present."""
        return reason in self._reasons

    def close(self, reason: str) -> None:
        """Close the gate of the healthy path for a reason, until `open` removes it."""
        with self._lock:
            self._reasons.add(reason)
            self._set_numbering()

    def open(self, reason: str) -> None:
        """Remove a reason to close the guard's healthy path; opened after the last."""
        with self._lock:
            self._reasons.discard(reason)
            self._set_numbering()

    def choose_numbering(self) -> None:
        """Choose the gate's `numbering` again.

        Other messages need the slow path now.
        """
        with self._lock:
            self._set_numbering()

    def _set_numbering(self) -> None:
        """Set the gate's `numbering`: the chosen function, or 0 for all if closed."""
        self.numbering = _number_none if self._reasons else self._choose()


def _number_none(_message: object) -> int:
    """Return 0 for each message at a closed gate: all take the slow path."""
    return 0


class Slots:
    """The slots of a process, and the right of a suspect to run alone.

    The healthy path takes slots from `free` and returns them without a lock, after it
    saw the gate open. A message that gets its slot just after the gate was closed runs
    beside a suspect; if the process dies then, neither message is charged.
    """

    def __init__(self, slots: Sequence[Slot], gate: Gate) -> None:
        self._gate = gate
        self._slots = slots
        self.free: list[Slot] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Free all slots: in a forked child no message runs."""
        self._lock = threading.Lock()
        self._alone: object | None = None
        # Taken from the end: a consumer with one thread lives in slot 0.
        self.free[:] = reversed(self._slots)
        self._gate.open("alone")

    @property
    def running(self) -> int:
        """Return how many slots are taken by messages that run now."""
        return len(self._slots) - len(self.free)

    def take(self, *, alone: object | None) -> Slot | None:
        """Take a slot to run a message; return None while the message must wait.

        `alone` stands for a message that must run alone: after its first call no other
        message gets a slot, and it gets one when the others are done.
        """
        with self._lock:
            if self._alone is None and alone is not None:
                self._alone = alone
                self._gate.close("alone")
            if self._alone is not alone or (alone is not None and self.running):
                return None
            try:
                return self.free.pop()
            except IndexError:  # the healthy path was faster
                return None

    def give_back(self, slot: Slot) -> None:
        """Free the slot of a message that `take` returned."""
        self.free.append(slot)

    def end_turn_alone(self, alone: object | None) -> None:
        """End the turn of a message that had to run alone: others get slots again."""
        with self._lock:
            if alone is not None and self._alone is alone:
                self._alone = None
                self._gate.open("alone")
