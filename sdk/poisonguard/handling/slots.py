"""Who may run: many at once, but a message suspected of killing its process alone.

If the process dies while one message runs, there is no doubt which one it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from poisonguard.handling.counts import Slot

Numbering = Callable[[Any], int]


class Gate:
    """Whether the healthy path is free: `number` is all that it asks.

    While the gate is open, that is what `choose` gives: it numbers a message, and gives
    0 to one that has to be looked at closer. While it is closed all have to be. It is
    closed for one reason or several, and open again when the last one is gone.
    """

    number: Numbering

    def __init__(
        self, *reasons: str, choose: Callable[[], Numbering] = lambda: _none
    ) -> None:
        self._choose = choose
        self.reset_after_fork(*reasons)

    def reset_after_fork(self, *reasons: str) -> None:
        self._lock = threading.Lock()
        self._reasons = set(reasons)
        self.choose()

    @property
    def is_open(self) -> bool:
        return not self._reasons

    def is_closed_by(self, reason: str) -> bool:
        return reason in self._reasons

    def close(self, reason: str) -> None:
        with self._lock:
            self._reasons.add(reason)
            self._set()

    def open(self, reason: str) -> None:
        with self._lock:
            self._reasons.discard(reason)
            self._set()

    def choose(self) -> None:
        """Choose anew, because what there is to look at has changed."""
        with self._lock:
            self._set()

    def _set(self) -> None:
        self.number = _none if self._reasons else self._choose()


def _none(_message: object) -> int:
    return 0


class Slots:
    """The slots of a process, and the right to run without neighbours.

    The healthy path takes from `free` and gives back without a lock, once it has seen
    the gate open. A message that slips through between that look and its slot runs
    beside a suspect; if the process dies then, neither is charged.
    """

    def __init__(self, slots: Sequence[Slot], gate: Gate) -> None:
        self._gate = gate
        self._slots = slots
        self.free: list[Slot] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Free all slots: nothing runs."""
        self._lock = threading.Lock()
        self._alone: object | None = None
        # Taken from the end: a consumer with one thread lives in slot 0.
        self.free[:] = reversed(self._slots)
        self._gate.open("alone")

    @property
    def running(self) -> int:
        return len(self._slots) - len(self.free)

    def take(self, *, alone: object | None) -> Slot | None:
        """Take a slot, None while it is not one's turn.

        `alone` stands for a message that must have no neighbours: from its first
        attempt on nobody else starts, and it does once the others are done.
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
        self.free.append(slot)

    def give_up(self, alone: object | None) -> None:
        """Let others run again beside what had to run alone."""
        with self._lock:
            if alone is not None and self._alone is alone:
                self._alone = None
                self._gate.open("alone")
