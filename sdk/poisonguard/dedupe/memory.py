"""A window in the memory of one process: its last handled messages."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poisonguard.dedupe.once import Busy, Copy, Once, Window
from poisonguard.errors import Misconfigured
from poisonguard.readers import Reader

if TYPE_CHECKING:
    from poisonguard.handling.healthy_path import AsyncHandler

MESSAGES_LIMIT = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryWindow(Window):
    """Knows the last `messages` that were handled, each for `age` seconds.

    It does not know messages handled by other processes, or before this one started.
    With `by_bookmark`, a message without an id is identified by its bookmark: for
    topics that never use a bookmark twice.
    """

    messages: int = 100_000
    age: float = 3_600.0
    by_bookmark: bool = False

    def __post_init__(self) -> None:
        number, age = self.messages, self.age
        if type(number) is not int or not 0 < number <= MESSAGES_LIMIT:
            raise Misconfigured(
                f"MemoryWindow: messages is {number!r}: give a whole number from 1 to"
                f" {MESSAGES_LIMIT}."
            )
        if type(age) not in {int, float} or not 0 < age < math.inf:
            raise Misconfigured(
                f"MemoryWindow: age is {age!r}: give seconds, more than 0."
            )

    def open(
        self,
        *,
        topic: str,  # noqa: ARG002 - one guard has one topic
        consumer_group: str,  # noqa: ARG002
        reader: Reader,
    ) -> Once:
        """Return a guard's `Once` of this dedupe window, still without messages."""
        return MemoryOnce(reader, self)


class MemoryOnce(Once):
    """Remember what its guard has handled in this process.

    A forked child knows what its parent had handled until then.
    """

    def __init__(
        self,
        reader: Reader,
        window: MemoryWindow,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window = window
        self._clock = clock
        self._ends: dict[
            bytes, float
        ] = {}  # expiry times of handled keys, the oldest first
        super().__init__(reader, by_bookmark=window.by_bookmark)

    def reset_after_fork(self) -> None:
        """Forget running copies of messages in a forked child, not the handled."""
        super().reset_after_fork()
        # Rebuilt: another thread may have been changing both at the fork.
        self._order = deque(self._ends)

    def run(self, handler: Callable[[Any], object], message: Any) -> None:
        """Run a message's handler and remember the message, or raise Copy or Busy."""
        key = self._key(message)
        if key is None:
            handler(message)
            return
        self._claim_key(key)
        try:
            handler(message)
        except BaseException:
            self._release_key(key)
            raise
        self._remember(key)

    async def run_async(self, handler: AsyncHandler, message: Any) -> None:
        """Await a message's handler, remember the message, or raise Copy or Busy."""
        key = self._key(message)
        if key is None:
            await handler(message)
            return
        self._claim_key(key)
        try:
            await handler(message)
        except BaseException:
            self._release_key(key)
            raise
        self._remember(key)

    def facts(self) -> dict[str, object]:
        """Return the dedupe window's counts, its part of the guard's `health()`."""
        return {**super().facts(), "remembered": len(self._ends)}

    def _claim_key(self, key: bytes) -> None:
        """Mark a message as running in this process; raise Copy or Busy instead.

        Copy is raised if a copy of it ran, Busy if one runs.
        """
        with self._lock:
            ends = self._ends.get(key)
            if ends is not None and ends > self._clock():
                self._duplicates += 1
                raise Copy
            if key in self._running:
                raise Busy
            self._running.add(key)

    def _release_key(self, key: bytes) -> None:
        """Release a message that failed: copies of it may run in this process again."""
        with self._lock:
            self._running.discard(key)

    def _remember(self, key: bytes) -> None:
        """Note a message as handled; forget expired ones and those beyond the limit."""
        ends, order, most = self._ends, self._order, self._window.messages
        with self._lock:
            now = self._clock()
            while order and (len(order) >= most or ends[order[0]] <= now):
                del ends[order.popleft()]
            if key not in ends:  # unless it also ran in the parent
                order.append(key)
            ends[key] = now + self._window.age
            self._running.discard(key)
