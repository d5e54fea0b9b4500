"""Sessions of Postgres: open extra ones, and share Django's among many threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

import psycopg
from django.db import InternalError, OperationalError, connection, connections
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg import Notify
from psycopg.conninfo import make_conninfo
from psycopg.errors import IdleInTransactionSessionTimeout
from psycopg_pool import PoolTimeout

# Seconds that a thread waits for one of the shared sessions.
BORROW_TIMEOUT = 10.0
# The pool retries less and less often. After this many seconds it starts over, so that
# a thread need not wait for minutes when Postgres is back.
RECONNECT_TIMEOUT = 5.0
# Of a process that is frozen inside a transaction: others wait for its rows so long.
IDLE_TRANSACTION = "5s"
# How often a session that listens is read without a sign of its socket.
LOOK_SECONDS = 1.0


def open_session(purpose: str) -> psycopg.Connection[Any]:
    """Connect to Django's database, in autocommit; the caller closes the session."""
    return psycopg.connect(**_parameters(purpose), autocommit=True)


def conninfo(purpose: str, **settings: str) -> str:
    """Describe Django's database for a library that connects by itself.

    `settings` are those of Postgres for the sessions.
    """
    return make_conninfo(**_parameters(purpose), options=session_options(settings))


def session_options(settings: Mapping[str, str]) -> str:
    """Write settings of Postgres as libpq takes them for a session."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


async def open_async_session(purpose: str) -> psycopg.AsyncConnection[Any]:
    """Connect to Django's database as `open_session` does, for an event loop."""
    return await psycopg.AsyncConnection.connect(
        **_parameters(purpose), autocommit=True
    )


async def notices(session: psycopg.AsyncConnection[Any]) -> AsyncIterator[Notify]:
    """Yield what Postgres notifies to a session that listens, without end.

    Without a notice it looks once a second; psycopg's own `notifies` does ten times.
    Raises psycopg.OperationalError when the session ends.
    """
    while True:
        # At each `yield`, the session is free: psycopg locks it while it reads.
        for notice in [each async for each in session.notifies(timeout=0)]:
            yield notice
        await _until_readable(session.fileno())


async def _until_readable(socket: int) -> None:
    """Wait until a socket has bytes to read, or its other side closed it.

    It waits a second at most: TLS may have read them already.
    """
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(socket, is_readable.set)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await is_readable.wait()
    finally:
        loop.remove_reader(socket)


def _parameters(purpose: str) -> dict[str, Any]:
    """Return psycopg's parameters for Django's database, with short timeouts."""
    wrapper = cast(DatabaseWrapper, connection)
    parameters = dict(wrapper.get_connection_params())
    names = {"dbname", "user", "password", "host", "port", "sslmode", "sslrootcert"}
    target = {name: value for name, value in parameters.items() if name in names}
    # Keepalives: Postgres must end a session behind a dead network within seconds.
    return {
        **target,
        "application_name": f"poisonweb {purpose}",
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        # Milliseconds; keepalives pause while sent data is unacknowledged (RFC 5482).
        "tcp_user_timeout": 11_000,
    }


@contextmanager
def share_sessions(
    purpose: str, *, most: int, timeout: float = BORROW_TIMEOUT, **settings: str
) -> Iterator[None]:
    """Let this process' threads share at most `most` of Django's sessions.

    A thread keeps its session until it returns it: see `borrow`. A thread that waits
    longer than `timeout` gets an OperationalError, as if Postgres were unavailable.
    `settings` are those of Postgres for the sessions.
    """
    wrapper = cast(DatabaseWrapper, connection)
    wrapper.close()
    database = connections.settings[wrapper.alias]
    before = dict(database)
    pool = {
        "min_size": 1,
        "max_size": most,
        "timeout": timeout,
        "reconnect_timeout": RECONNECT_TIMEOUT,
    }
    options = f"{database['OPTIONS']['options']} {session_options(settings)}"
    database["OPTIONS"] = {
        **database["OPTIONS"],
        "application_name": f"poisonweb {purpose}",
        "options": options.strip(),
        "pool": pool,
    }
    # So that the pool hands out no session that has ended.
    database["CONN_HEALTH_CHECKS"] = True
    try:
        yield
    finally:
        wrapper.close()
        wrapper.close_pool()
        database |= before


@contextmanager
def borrow() -> Iterator[None]:
    """Use Django's database session in this block; return a shared one after it.

    Do not wait for a broker in this block.
    """
    pool = connection.settings_dict["OPTIONS"].get("pool")
    try:
        with session_ends_as_absence():
            yield
    except OperationalError as error:
        if isinstance(error.__cause__, PoolTimeout):
            message = f"Postgres gave us no session within {pool['timeout']:g} seconds"
            raise OperationalError(message) from error.__cause__
        raise
    finally:
        give_back_session()


def give_back_session() -> None:
    """Give this thread's session back to its pool, if any, before a long wait."""
    pool = connection.settings_dict["OPTIONS"].get("pool")
    if pool and not connection.in_atomic_block:
        connection.close()


@contextmanager
def session_ends_as_absence() -> Iterator[None]:
    """Raise OperationalError where Postgres ended a transaction that was too slow.

    Nothing of it is stored; Django has InternalError for it, as for a bug.
    """
    try:
        yield
    except InternalError as error:
        if isinstance(error.__cause__, IdleInTransactionSessionTimeout):
            message = "Postgres ended our session: it was idle in a transaction"
            raise OperationalError(message) from error.__cause__
        raise
