"""A producer's database: one of its own, with the tables of an outbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from poisonguard.outbox import backlog_size
from poisonguard.outbox.postgres_schema import schema
from tests.database_removal import drop_database

EMPTY = """
DELETE FROM poisonguard_outbox;
DELETE FROM poisonguard_outbox_sent;
DELETE FROM poisonguard_outbox_figures;
UPDATE poisonguard_outbox_sweeper SET fence = 0;
SELECT setval(pg_get_serial_sequence('poisonguard_outbox', 'row_id'), 40);
"""


@pytest.fixture(scope="module")
def outbox_database() -> Iterator[str]:
    url, name = os.environ["DATABASE_URL"], f"outbox_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute(schema())
            connection.execute(schema())  # a second time changes nothing
        yield dsn
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            drop_database(name, server)


@pytest.fixture
def outbox_dsn(outbox_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Empty the outbox's tables; return the address of the database."""
    monkeypatch.setattr(backlog_size, "_cache", {})
    with psycopg.connect(outbox_database) as connection:
        connection.execute(EMPTY)
    return outbox_database
