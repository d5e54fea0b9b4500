"""Connections to Postgres beside Django's: for what must live longer than a query."""

from __future__ import annotations

from typing import Any, cast

import psycopg
from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper


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
