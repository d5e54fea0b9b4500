"""What a requeue writes of each message, and how often it looks the message up.

What it writes is read back from the write-ahead log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psycopg
import pytest
from django.db import connection, transaction
from redis import Redis

from apps.brokers.models import Topic
from apps.core.queryset_sql import read_by_index
from apps.team.rights import Principal
from apps.triage.services import redrive_message_building
from tests.failure_report_builders import poisons
from tests.postgres_and_redis_plugin import FOLDER
from tests.races import on_another_connection
from tests.triage_operation_runner import confirm, counts_of, preview, run

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = 2_000
# What the operation writes of itself, and of its windows.
SHARE_OF_ALL = 0.1

# An index entry that splits its page is part of the record of the split.
_WRITES = """
SELECT CASE
         WHEN resource_manager = 'Btree' THEN 'index entry'
         WHEN record_type IN ('UPDATE', 'UPDATE+INIT', 'HOT_UPDATE') THEN 'update'
         WHEN record_type = 'DELETE' THEN 'delete'
         ELSE 'insert' END,
       count(*)
FROM pg_get_wal_block_info(%s, pg_current_wal_flush_lsn()) wal
JOIN pg_class written ON pg_relation_filenode(written.oid) = wal.relfilenode
WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND block_id = 0 AND relforknumber = 0 AND written.relname !~ '^pg_'
  AND (resource_manager = 'Btree' AND record_type IN (
           'INSERT_LEAF', 'INSERT_POST', 'SPLIT_L', 'SPLIT_R')
       OR resource_manager = 'Heap' AND record_type ~ '(INSERT|UPDATE|DELETE)'
       OR record_type ~ 'MULTI_INSERT')
GROUP BY 1
"""


Log = psycopg.Connection[tuple[str, int]]


@pytest.fixture
def log() -> Iterator[Log]:
    """Read the write-ahead log as the superuser, or as the role of one's own server."""
    settings = connection.settings_dict
    role = {"user": settings["USER"], "password": settings["PASSWORD"]}
    if FOLDER in os.environ:
        secret = Path(os.environ[FOLDER]) / "postgres" / "superuser-password"
        role = {"user": "postgres", "password": secret.read_text(encoding="utf-8")}
    with psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        dbname=settings["NAME"],
        autocommit=True,
        **role,
    ) as log:
        log.execute("CREATE EXTENSION pg_walinspect")
        # Otherwise a checkpoint, such as other tests cause that drop a database, would
        # remove what is still to be read. It ends with this session.
        log.execute(
            "SELECT pg_create_physical_replication_slot(%s, true, true)",
            [f"writes_{os.getpid()}"],
        )
        yield log
        log.execute("DROP EXTENSION pg_walinspect")


def end_of(log: Log) -> str:
    """Return where the log ends; all of it up to there is written."""
    # The tests' server writes its log late: a commit that waits for it.
    log.execute("SET synchronous_commit = on")
    log.execute("SELECT pg_logical_emit_message(true, 'end', '')")
    return log.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()[0][0]


def writes_since(start: str, log: Log) -> dict[str, float]:
    """Count row versions and index entries, for each message."""
    end_of(log)
    rows = log.execute(_WRITES, [start]).fetchall()
    return {kind: number / MESSAGES for kind, number in rows}


def test_a_requeue_writes_few_rows_and_index_entries_of_each_message(
    orders: Topic, stream: Redis, operator: Principal, now: datetime, log: Log
) -> None:
    poisons(now, MESSAGES)
    start = end_of(log)

    operation = confirm(operator, preview(operator, now), now)
    run(operation, now)

    writes = writes_since(start, log)
    assert counts_of(operation) == {"sent": MESSAGES}
    assert writes.keys() == {"insert", "update", "delete", "index entry"}
    assert 3 <= writes["insert"] <= 3 + SHARE_OF_ALL
    assert 1 <= writes["update"] <= 1 + SHARE_OF_ALL
    assert 1 <= writes["delete"] <= 1 + SHARE_OF_ALL
    # Six of them are the poison's: its state stands in one of its indexes.
    assert 0 < writes["index entry"] <= 13 + SHARE_OF_ALL


@pytest.mark.parametrize("analysed", ["never", "while rows were not committed yet"])
def test_a_message_is_looked_up_once_to_be_sent(
    orders: Topic, operator: Principal, now: datetime, analysed: str
) -> None:
    with transaction.atomic():
        poisons(now, 200)
        if analysed != "never":
            on_another_connection(analyse)
    operation = confirm(operator, preview(operator, now), now)

    with transaction.atomic():
        read_by_index()
        before = poisons_read()
        items = redrive_message_building.read(
            operation=operation.pk,
            first=0,
            size=operation.window_size,
            most=150,
            unmarked=(),
            topics={},
            now=now,
        )
        read = poisons_read() - before

    assert (len(items.messages), read) == (150, 150)


def analyse() -> None:
    """Let Postgres take the table for an empty one, as autovacuum may."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE poison_poison, poison_body, poison_hold")


def poisons_read() -> int:
    """Count the poisons that this transaction has looked up so far."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables"
            " WHERE relname = 'poison_poison'"
        )
        return int(cursor.fetchone()[0])


def test_no_poison_is_looked_up_for_a_foreign_key_of_what_is_inserted(
    db: None,
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text, confrelid::regclass::text"
            " FROM pg_constraint WHERE contype = 'f' AND conrelid IN"
            " ('triage_selected_item'::regclass, 'poison_hold'::regclass,"
            "  'poison_redrive'::regclass)"
        )
        assert cursor.fetchall() == [("poison_redrive", "brokers_topic")]
