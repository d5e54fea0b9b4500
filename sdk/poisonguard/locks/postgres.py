"""Locks in Postgres: a queue of numbered tickets for each resource.

Create the tables with the SQL that `schema()` returns. The connection must be one to
Postgres itself, or to a pooler that pools sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import resources

from poisonguard.errors import Misconfigured
from poisonguard.locks.lock_server import LockAttempt, LockServer
from poisonguard.locks.postgres_queues import TicketQueues

LOOK_SECONDS = 1.0


def schema() -> str:
    """Return the SQL that creates the tables of locks, if they do not exist."""
    return resources.files(__package__).joinpath("postgres.sql").read_text()


class PostgresLocks(LockServer):
    """One session of Postgres for all locks of a process; `conninfo` as in libpq.

    A function returns it again for each session, where the address may move. Without
    news, each waiter looks at what is before it every `look_every` seconds.
    """

    def __init__(
        self, conninfo: str | Callable[[], str], *, look_every: float = LOOK_SECONDS
    ) -> None:
        super().__init__()
        if not 0 < look_every <= threading.TIMEOUT_MAX:
            raise Misconfigured(
                f"PostgresLocks: look_every is {look_every!r}: give seconds."
            )
        self._conninfo = conninfo
        self._look_every = look_every
        self._queues: TicketQueues | None = None

    def attempt(self, resource: str) -> LockAttempt:
        """Join the queue for a resource's lock; return the attempt to wait on.

        If the last session of Postgres has ended, this opens a new one.
        """
        with self._mutex:
            queues = self._queues
            if queues is None or queues.has_ended:
                source = self._conninfo
                conninfo = source() if callable(source) else source
                queues = TicketQueues(conninfo, look_every=self._look_every)
                self._queues = queues
            return queues.attempt(resource)

    def _detach(self) -> TicketQueues | None:
        queues, self._queues = self._queues, None
        return queues
