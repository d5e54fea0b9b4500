"""A fair lock over processes: `ResourceLock`, on Postgres or on ZooKeeper.

    locks = PostgresLocks("postgresql://...")  # poisonguard.locks.postgres
    lock = ResourceLock("invoices", locks)
    with lock as grant:
        write(fence=grant.fence)

All threads of a process share its one connection. `PostgresLocks` needs psycopg,
`ZooKeeperLocks` (`poisonguard.locks.zookeeper`) needs kazoo.
"""

from __future__ import annotations

from poisonguard.locks.lock_server import LockGrant, LockServer
from poisonguard.locks.resource_lock import ResourceLock

__all__ = ["LockGrant", "LockServer", "ResourceLock"]
