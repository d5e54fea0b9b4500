"""Locks in Postgres: a queue of numbered tickets for each resource.

Create the tables with the SQL that `schema()` returns. The connection must be one to
Postgres itself, or to a pooler that pools sessions.
"""

from __future__ import annotations

import os
import threading
from importlib import resources
from weakref import WeakSet

from poisonguard.locks.lock_server import LockAttempt, LockServer
from poisonguard.locks.postgres_queues import TicketQueues

LOOK_SECONDS = 1.0


def schema() -> str:
    """Return the SQL that creates the tables, if they do not exist."""
    return resources.files(__package__).joinpath("postgres.sql").read_text()


class PostgresLocks(LockServer):
    """One session of Postgres for all locks of a process; `conninfo` as in libpq.

    Without news, each waiter looks at what is before it every `look_every` seconds.
    """

    def __init__(self, conninfo: str, *, look_every: float = LOOK_SECONDS) -> None:
        super().__init__()
        self._conninfo = conninfo
        self._look_every = look_every
        self._queues: TicketQueues | None = None
        self._mutex = threading.Lock()
        _servers.add(self)

    def attempt(self, resource: str) -> LockAttempt:
        """Join the queue of a resource, on a new session if the last one has ended."""
        with self._mutex:
            queues = self._queues
            if queues is None or queues.has_ended:
                queues = TicketQueues(self._conninfo, look_every=self._look_every)
                self._queues = queues
            return queues.attempt(resource)

    def close(self) -> None:
        """End the session, and with it all grants and attempts."""
        with self._mutex:
            queues, self._queues = self._queues, None
        if queues is not None:
            queues.close()

    def reset_after_fork(self) -> None:
        """Begin again in a forked child: the session is the parent's."""
        self._mutex = threading.Lock()
        self._queues = None


_servers: WeakSet[PostgresLocks] = WeakSet()


def _reset_all_after_fork() -> None:
    for server in list(_servers):
        server.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
