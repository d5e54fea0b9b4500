"""The latest heartbeats of this process's guards."""

from __future__ import annotations

import threading

from poisonguard.contract import GuardHeartbeat, GuardState
from poisonguard.server.fixed_interval import RepeatInterval

EVERY = 60.0

# The topic, the consumer group and the client name.
_Guard = tuple[str, str, str]


class Heartbeats:
    """The heartbeats to send next: of each guard the latest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[_Guard, GuardHeartbeat] = {}
        self._states: dict[_Guard, GuardState] = {}
        self._interval = RepeatInterval(EVERY)

    @property
    def waiting(self) -> int:
        """Return how many guards have a heartbeat to be sent."""
        return len(self._latest)

    def set(self, heartbeat: GuardHeartbeat) -> bool:
        """Replace a guard's heartbeat; return whether to send it at once.

        That is the case when its state changed.
        """
        guard = _guard(heartbeat)
        with self._lock:
            self._latest[guard] = heartbeat
            is_changed = self._states.get(guard) != heartbeat.state
            self._states[guard] = heartbeat.state
            if is_changed:
                self._interval.end()
        return is_changed

    def take(self, *, early: bool) -> list[GuardHeartbeat]:
        """Remove and return the guards' heartbeats, if they are due or `early`."""
        if not self._latest or not self._interval.restart_if_due(early=early):
            return []
        with self._lock:
            latest, self._latest = self._latest, {}
        return list(latest.values())

    def put_back(self, heartbeats: list[GuardHeartbeat]) -> None:
        """Put back heartbeats that could not be sent, where there is no later one."""
        if heartbeats:
            with self._lock:
                unsent = {_guard(heartbeat): heartbeat for heartbeat in heartbeats}
                self._latest = unsent | self._latest
                self._interval.end()


def _guard(heartbeat: GuardHeartbeat) -> _Guard:
    """Return topic, group and client name, which identify a heartbeat's guard."""
    return heartbeat.topic, heartbeat.consumer_group, heartbeat.client_name
