"""Fixtures: a producer's database with an outbox of its own, and time for its lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from poisonguard.locks import lock_server
from tests.database_removal import drop_database
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables


@pytest.fixture(scope="module")
def outbox_database() -> Iterator[str]:
    """Make a database for the tests of one module."""
    url, name = os.environ["DATABASE_URL"], f"outbox_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            drop_database(name, server)


@pytest.fixture(autouse=True)
def patient_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each turn of a sweeper have its lock, also while the machine stalls."""
    monkeypatch.setattr(lock_server, "FIRST_ANSWER_SECONDS", 60.0)


@pytest.fixture
def outbox(outbox_database: str) -> Iterator[OutboxTables]:
    """Create new outbox tables in the public schema."""
    tables = OutboxTables(outbox_database)
    tables.make()
    yield tables
    tables.close()
