"""What goes wrong on purpose: errors, lost answers, and a server that hangs."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass
class Fault:
    """What the next requests get instead of an answer."""

    status: int
    headers: dict[str, str]
    times: int
    path: str


class Faults:
    """The faults that a test asked for; `changed` is the double's."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._faults: list[Fault] = []
        self._answers_to_lose = 0
        self._frozen = False

    # What a test asks

    def freeze(self) -> None:
        """Keep every connection of the fake Poisonweb server and answer none."""
        with self._changed:
            self._frozen = True

    def thaw(self) -> None:
        with self._changed:
            self._frozen = False
            self._changed.notify_all()

    def answer(
        self,
        status: int,
        *,
        times: int = 10**9,
        path: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Have the fake server answer its next requests by this error.

        Those whose path begins with `path`.
        """
        with self._changed:
            self._faults.append(Fault(status, headers or {}, times, path))

    def lose_answers(self, times: int) -> None:
        """Have the fake server act on the next POSTs, but lose their answers.

        It breaks their connections.
        """
        with self._changed:
            self._answers_to_lose = times

    def recover(self) -> None:
        with self._changed:
            self._faults.clear()
            self._answers_to_lose = 0

    # What each request asks

    def next(self, path: str) -> Fault | None:
        """Return the fake server's fault for a request, if any; wait while frozen."""
        with self._changed:
            self.wait_until_thawed()
            for fault in self._faults:
                if path.startswith(fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def loses_answer(self) -> bool:
        with self._changed:
            self._answers_to_lose -= 1
            return self._answers_to_lose >= 0

    def wait_until_thawed(self) -> None:
        with self._changed:
            while self._frozen:
                self._changed.wait(0.1)
