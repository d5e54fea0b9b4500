"""Released messages of a topic that replays, kept for another try.

The broker of such a topic delivers a message again only to a client that reads from
before it. So the guard tries it again: on a thread of its own where the message is
poison and only must be reported, on the consumer's thread where its handler must run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from poisonguard.handling.concurrency_slots_and_suspect_isolation import Gate
from poisonguard.policy import double_pause

MESSAGES_LIMIT = 1_000
BYTES_LIMIT = 64 * 1024 * 1024
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
REASON = "kept"  # why the gate is closed: the broker may also deliver one again


class HandlerNeeded(BaseException):
    """A retry on the guard's own thread would have to run the handler."""


def raise_handler_needed(_message: object) -> None:
    """Raise HandlerNeeded in place of a handler: the guard's own thread runs none."""
    raise HandlerNeeded


@dataclass(eq=False, slots=True)
class ReleasedMessage:
    """A message with its handler."""

    bookmark: str
    message: Any
    handler: Callable[[Any], Any]
    size: int
    needs_handler: bool = False
    tries: int = 0
    due_at: float = field(default_factory=lambda: time.monotonic() + FIRST_PAUSE)


class ReleasedMessages:
    """The released messages of one process, the oldest first."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget released messages, the parent's, in a forked child."""
        self._lock = threading.Lock()
        self._waiting: dict[str, ReleasedMessage] = {}
        self._busy: dict[str, ReleasedMessage] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._busy)

    def add(self, entry: ReleasedMessage) -> bool:
        """Keep a released message, within limits; return whether it is kept."""
        with self._lock:
            is_room = (
                len(self) < MESSAGES_LIMIT and self._bytes + entry.size <= BYTES_LIMIT
            )
            is_kept = is_room or not len(self)  # the first may have any size
            if is_kept:
                self._put(entry)
                self._set_gate()
            return is_kept

    def take(self, *, needs_handler: bool) -> ReleasedMessage | None:
        """Take the oldest due released message; return None without one.

        Then call `settled` or `give_back` for it. Take only messages that need their
        handler, or only others.
        """
        with self._lock:
            now = time.monotonic()
            for entry in self._waiting.values():
                if entry.due_at <= now and entry.needs_handler is needs_handler:
                    del self._waiting[entry.bookmark]
                    self._busy[entry.bookmark] = entry
                    return entry
            return None

    def is_due(self) -> bool:
        """Tell whether any released message can be tried now without its handler."""
        now = time.monotonic()
        return any(
            entry.due_at <= now and not entry.needs_handler
            for entry in list(self._waiting.values())
        )

    def give_back(self, entry: ReleasedMessage, *, needs_handler: bool) -> None:
        """Put an undecided released message back into the guard's waiting ones.

        Double its pause, or mark it as one that needs its handler.
        """
        with self._lock:
            self._drop(entry.bookmark)
            if not needs_handler:
                pause = double_pause(FIRST_PAUSE, entry.tries, cap=LONGEST_PAUSE)
                entry.due_at = time.monotonic() + pause
                entry.tries += 1
            # From now on on the consumer's thread, where it can be reported as well.
            entry.needs_handler |= needs_handler
            self._put(entry)
            self._set_gate()

    def settled(self, entry: ReleasedMessage) -> None:
        """Drop a released message that `take` returned, and that is decided now."""
        with self._lock:
            self._drop(entry.bookmark)
            self._set_gate()

    def discard_unless_busy(self, bookmark: str) -> bool:
        """Drop a released message that was delivered again; False during a retry."""
        with self._lock:
            if bookmark in self._busy:
                return False
            self._drop(bookmark)
            self._set_gate()
            return True

    def _put(self, entry: ReleasedMessage) -> None:
        """Let a released message wait for its retry, in place of its bookmark's.

        Call it under the lock.
        """
        self._drop(entry.bookmark)
        self._waiting[entry.bookmark] = entry
        self._bytes += entry.size

    def _drop(self, bookmark: str) -> None:
        """Remove the released message with this bookmark, if there is one."""
        for entries in (self._waiting, self._busy):
            entry = entries.pop(bookmark, None)
            if entry is not None:
                self._bytes -= entry.size

    def _set_gate(self) -> None:
        """Close the healthy path's gate while released messages wait; else open it."""
        is_closed = self._gate.is_closed_by(REASON)
        if len(self) and not is_closed:
            self._gate.close(REASON)
        elif is_closed and not len(self):
            self._gate.open(REASON)
