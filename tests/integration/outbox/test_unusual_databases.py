"""Producers' databases of another encoding, and other settings than usual."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from apps.outbox import producer_rows
from apps.outbox.producer_rows import RowFilter
from tests.database_removal import drop_database
from tests.in_memory_queue_broker import Queues
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.outbox.test_sweeping_registered_outboxes import sweeping
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def tables_in(encoding: str) -> Iterator[tuple[str, OutboxTables]]:
    """Make a database of an encoding; give its address, and its tables."""
    url, name = os.environ["DATABASE_URL"], f"outbox_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C'"
            " TEMPLATE template0"
        )
        dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
        tables = OutboxTables(f"{dsn}?client_encoding=UTF8")
        try:
            tables.make()
            yield dsn, tables
        finally:
            tables.close()
            drop_database(name, server)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_names_are_sent_whatever_the_encoding_of_the_database(
    encoding: str, broker: Queues
) -> None:
    with tables_in(encoding) as (dsn, tables):
        registered = outbox_at(dsn)
        tables.put("m-é", topic="Aufträge", key="Ã©")
        with sweeping():
            wait_until(lambda: not tables.waiting)
        (row,) = producer_rows.find(registered, RowFilter(topic="Aufträge"), most=9)
        locks = tables.execute("SELECT name FROM poisonguard_lock_resources")

    (sent,) = broker.published
    assert (sent.topic, sent.key, sent.dedupe) == ("Aufträge", "Ã©", "shop/m-é")
    assert row.message_id == "m-é"
    assert locks == [("outbox:public",)]  # as other sweepers have it


def test_rows_are_read_whatever_style_of_dates_the_database_has(
    outbox: OutboxTables,
) -> None:
    registered = outbox_at(outbox.dsn)
    outbox.put("m-1")
    name = urlsplit(outbox.dsn).path.removeprefix("/")
    outbox.execute(f"ALTER DATABASE {name} SET datestyle = 'German'")
    try:
        (row,) = producer_rows.find(registered, RowFilter(), most=9)
    finally:
        outbox.execute(f"ALTER DATABASE {name} RESET datestyle")
    assert row.created_at == outbox.column("created_at", row.row_id)
