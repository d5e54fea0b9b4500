"""One sweeper at a time: the lock in the producer's database, and its fence.

A sweeper that was frozen may have lost its lock unseen: the table then refuses its
fence, which is lower than that of the next one.
"""

from __future__ import annotations

import logging

from poisonguard.errors import Misconfigured
from poisonguard.locks import LockGrant, LockServer, ResourceLock
from poisonguard.outbox.sweeping.connection import OutboxConnection

log = logging.getLogger(__name__)

# As the catalog has it: the search paths of two sweepers may begin with other schemas.
READ_SCHEMA = """
SELECT nspname::text FROM pg_class JOIN pg_namespace AS schema
  ON schema.oid = relnamespace
WHERE pg_class.oid = %(table)s::regclass
"""
TAKE_OVER = """
INSERT INTO {sweeper} AS now (fence) VALUES (%(fence)s)
ON CONFLICT (only_row) DO UPDATE SET fence = EXCLUDED.fence
WHERE now.fence < EXCLUDED.fence RETURNING fence
"""
TOO_LOW = (
    "The fence in poisonguard_outbox_sweeper is not below ours, which is {}: another"
    " sweeper took over just now, or the tables of the lock were made again. If no"
    " other sweeper runs: UPDATE poisonguard_outbox_sweeper SET fence = 0"
)


class Ownership:
    """The lock of one outbox, and the grant while it is ours."""

    def __init__(self, locks: LockServer) -> None:
        self._locks = locks
        self._lock: ResourceLock | None = None
        self._grant: LockGrant | None = None

    @property
    def fence(self) -> int | None:
        """Return this sweeper's fence; None where another sweeper may work."""
        grant = self._grant
        return None if grant is None or grant.lost else grant.fence

    def acquire(self, connection: OutboxConnection, *, seconds: float) -> int | None:
        """Return our sweeper's fence; wait for another sweeper to end, or return None.

        Raises Misconfigured where the fence in the table is not lower.
        """
        if (fence := self.fence) is not None:
            return fence
        self.release()
        lock = self._resource_lock(connection)
        try:
            grant = lock.acquire(seconds)
        except BaseException:
            # A place in the queue that was left behind would block it for all.
            self.close()
            raise
        if grant is None:
            return None
        self._grant = grant
        if not connection.execute(TAKE_OVER, {"fence": grant.fence}):
            self.release()
            raise Misconfigured(TOO_LOW.format(grant.fence))
        log.info("This sweeper works now, by fence %d", grant.fence)
        return grant.fence

    def release(self) -> None:
        """Release the outbox's lock, so that the next sweeper works."""
        grant, self._grant = self._grant, None
        if grant is not None:
            grant.release()

    def close(self) -> None:
        """Release the outbox's lock for good."""
        self.release()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.destroy()

    def _resource_lock(self, connection: OutboxConnection) -> ResourceLock:
        if self._lock is None:
            values = {"table": connection.outbox_table}
            ((schema,),) = connection.execute(READ_SCHEMA, values)
            self._lock = ResourceLock(f"outbox:{schema}", self._locks)
        return self._lock
