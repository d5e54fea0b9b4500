"""Sessions of Postgres: beside Django's own, and few of Django's for many threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from django.db import OperationalError, connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg_pool import PoolTimeout

# Of a thread that waits for one of the sessions that all share.
PATIENCE = 10.0
# The pool tries ever less often to connect: after this long it begins anew, so that
# who asks when Postgres is back does not wait for a try of minutes later.
RECONNECT_WITHIN = 5.0


def open_session(purpose: str) -> psycopg.Connection[Any]:
    """Connect to Django's database, in autocommit; whoever asks closes it."""
    return psycopg.connect(**_parameters(purpose))


async def open_async_session(purpose: str) -> psycopg.AsyncConnection[Any]:
    """Connect in the same way, for use in an event loop."""
    return await psycopg.AsyncConnection.connect(**_parameters(purpose))


def _parameters(purpose: str) -> dict[str, Any]:
    wrapper = cast(DatabaseWrapper, connection)
    parameters = dict(wrapper.get_connection_params())
    wanted = {"dbname", "user", "password", "host", "port", "sslmode", "sslrootcert"}
    chosen = {name: value for name, value in parameters.items() if name in wanted}
    # Keepalives: a holder behind a dead network must be found out within seconds.
    return {
        **chosen,
        "autocommit": True,
        "application_name": f"poisonweb {purpose}",
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        # They rest while something sent waits to be acknowledged (RFC 5482): in ms.
        "tcp_user_timeout": 11_000,
    }


@contextmanager
def shared(purpose: str, *, most: int, patience: float = PATIENCE) -> Iterator[None]:
    """Let the threads of this process share at most so many of Django's sessions.

    A thread keeps the one it uses until it gives it back: see `borrow`. One that waits
    for longer than `patience` gets an OperationalError, as if Postgres were away.
    """
    wrapper = cast(DatabaseWrapper, connection)
    wrapper.close()
    database = connections.settings[wrapper.alias]
    before = dict(database)
    pool = {
        "min_size": 1,
        "max_size": most,
        "timeout": patience,
        "reconnect_timeout": RECONNECT_WITHIN,
    }
    name = {"application_name": f"poisonweb {purpose}"}
    database["OPTIONS"] = {**database["OPTIONS"], **name, "pool": pool}
    # A session that ended while it lay in the pool is never handed out.
    database["CONN_HEALTH_CHECKS"] = True
    try:
        yield
    finally:
        wrapper.close()
        wrapper.close_pool()
        database |= before


@contextmanager
def borrow() -> Iterator[None]:
    """Use Django's session for this only; one that threads share is given back.

    Nobody waits for a broker in here.
    """
    pool = connection.settings_dict["OPTIONS"].get("pool")
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, PoolTimeout):
            told = f"Postgres gave us no session within {pool['timeout']:g} seconds"
            raise OperationalError(told) from error.__cause__
        raise
    finally:
        if pool and not connection.in_atomic_block:
            connection.close()
