"""The latest heartbeats of this process's guards."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from poisonguard.server.intervals import Interval

EVERY = 60.0

Facts = Mapping[str, object]
_Guard = tuple[object, ...]


class Heartbeats:
    """The heartbeats to send next: of each guard the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[_Guard, Facts] = {}
        self._states: dict[_Guard, object] = {}
        self._interval = Interval(EVERY)

    @property
    def waiting(self) -> int:
        return len(self._latest)

    def set(self, facts: Facts) -> bool:
        """Replace a guard's heartbeat; return whether to send it at once.

        That is the case when its state changed.
        """
        guard = _guard(facts)
        with self._lock:
            self._latest[guard] = facts
            is_changed = self._states.get(guard) != facts.get("state")
            self._states[guard] = facts.get("state")
            if is_changed:
                self._interval.end()
        return is_changed

    def take(self, *, early: bool) -> list[Facts]:
        """Take the heartbeats, if they are due or `early`."""
        if not self._latest or not self._interval.restart_if_due(early=early):
            return []
        with self._lock:
            latest, self._latest = self._latest, {}
        return list(latest.values())

    def put_back(self, heartbeats: list[Facts]) -> None:
        """Put back heartbeats that could not be sent, where there is no later one."""
        if heartbeats:
            with self._lock:
                unsent = {_guard(facts): facts for facts in heartbeats}
                self._latest = unsent | self._latest
                self._interval.end()


def _guard(facts: Facts) -> _Guard:
    return tuple(facts.get(n) for n in ("topic", "consumer_group", "client_name"))
