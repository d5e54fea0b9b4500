"""A second connection corrupts the table while it is read: no message is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from poisonguard.outbox.sweeping import unmarkable_rows
from poisonguard.outbox.sweeping.connection import connecting_to
from poisonguard.outbox.sweeping.sweeper import Sweeper
from poisonweb.embedded import postgres, process_control
from poisonweb.embedded.free_ports import free_port
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
    sweeping,
    work_until,
)
from tests.waiting import wait_until

CORRUPTIONS = 100
ROWS_AT_ONCE = 20
LOOSEN = """
ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_names,
    DROP CONSTRAINT poisonguard_outbox_header_pairs;
DROP INDEX poisonguard_outbox_waiting_by_key;
"""
SOME = "row_id IN (SELECT row_id FROM poisonguard_outbox ORDER BY row_id DESC LIMIT 5)"
IS_SENT_AS_IT_IS = """
SELECT message_id, body FROM poisonguard_outbox
WHERE sent_at IS NOT NULL AND written_at < sent_at
"""


class Corrupter:
    """Another program, which harms the table at random."""

    def __init__(self, outbox: OutboxTables, role: str) -> None:
        self._role = role
        self._number = 0
        self._outbox = outbox
        self.connection: psycopg.Connection[Any] = psycopg.connect(
            outbox.dsn, autocommit=True, application_name="corrupter"
        )

    def close(self) -> None:
        self.connection.close()

    def corrupt(self) -> None:
        random.choice(
            (
                *([self.damage_rows] * 4),
                self.put_id_twice,
                self.take_claims_away,
                self.take_marks_back,
                self.rename_table,
                self.rename_column,
                self.change_type,
                self.lock_table,
                self.withdraw_rights,
                self.end_sessions,
            )
        )()

    def damage_rows(self) -> None:
        change = random.choice(
            (
                *("body = NULL", "message_id = NULL", "topic = NULL", "key = NULL"),
                *("headers = NULL", "headers = '{a}'", "headers = '{a,NULL}'"),
                *("topic = ''", "producer = NULL", "body = substr(body, 1, 2)"),
                *("message_id = repeat('x', 1048576) || row_id",),
                *("due_at = NULL", "due_at = 'infinity'", "created_at = 'infinity'"),
                *("attempts = 2147483647", "attempts = NULL"),
            )
        )
        self.execute(f"UPDATE poisonguard_outbox SET {change} WHERE {SOME}")

    def put_id_twice(self) -> None:
        self._number += 1
        for body in ("one", "other"):
            self.execute(
                "INSERT INTO poisonguard_outbox (producer, message_id, topic, body)"
                f" VALUES ('shop', 'twice-{self._number}', 'orders', '{body}')"
            )

    def take_claims_away(self) -> None:
        self.execute(
            "UPDATE poisonguard_outbox SET claim_token = NULL"
            " WHERE claim_token IS NOT NULL"
        )

    def take_marks_back(self) -> None:
        self.execute(f"UPDATE poisonguard_outbox SET sent_at = NULL WHERE {SOME}")

    def rename_table(self) -> None:
        self.execute("ALTER TABLE poisonguard_outbox RENAME TO renamed")
        time.sleep(random.uniform(0, 0.05))
        self.execute("ALTER TABLE renamed RENAME TO poisonguard_outbox")

    def rename_column(self) -> None:
        column = random.choice(["claim_token", "body", "due_at"])
        self.execute(f"ALTER TABLE poisonguard_outbox RENAME {column} TO renamed")
        time.sleep(random.uniform(0, 0.05))
        self.execute(f"ALTER TABLE poisonguard_outbox RENAME renamed TO {column}")

    def change_type(self) -> None:
        change = "ALTER TABLE poisonguard_outbox ALTER claimed_until TYPE"
        self.execute(f"{change} text USING claimed_until::text")
        time.sleep(random.uniform(0, 0.05))
        self.execute(f"{change} timestamptz USING claimed_until::timestamptz")

    def lock_table(self) -> None:
        with self.connection.transaction():
            self.execute("LOCK poisonguard_outbox")
            time.sleep(random.uniform(0, 0.3))

    def withdraw_rights(self) -> None:
        right = random.choice(["SELECT", "UPDATE"])
        self.execute(f"REVOKE {right} ON poisonguard_outbox FROM {self._role}")
        time.sleep(random.uniform(0, 0.05))
        self.execute(f"GRANT {right} ON poisonguard_outbox TO {self._role}")

    def end_sessions(self) -> None:
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE usename = '{self._role}' AND datname = current_database()"
        )

    def execute(self, statement: str) -> None:
        """Run a statement, which may have to wait for the sweeper, or be its victim."""
        while True:
            try:
                self.connection.execute(statement)
            except psycopg.errors.DeadlockDetected:
                continue
            return


@pytest.fixture
def role(outbox: OutboxTables) -> Iterator[tuple[str, str]]:
    """Make a role of the sweeper; yield its name and its address."""
    name = f"sweeper_{uuid4().hex}"
    outbox.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    ((me,),) = outbox.execute("SELECT current_user")
    for statement in (
        f"GRANT {name} TO {me}",
        f"GRANT USAGE ON SCHEMA public TO {name}",
        "GRANT SELECT, INSERT, UPDATE, DELETE"
        f" ON ALL TABLES IN SCHEMA public TO {name}",
        f"GRANT CONNECT ON DATABASE {urlsplit(outbox.dsn).path[1:]} TO {name}",
    ):
        outbox.execute(statement)
    address = urlsplit(outbox.dsn)
    place = f"{name}:secret@{address.hostname}:{address.port}"
    yield name, address._replace(netloc=place).geturl()
    for statement in (f"DROP OWNED BY {name}", f"DROP ROLE {name}"):
        outbox.execute(statement)


@contextmanager
def in_thread(sweeper: Sweeper) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=sweeper.run, args=[stop])
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()


def test_a_hundred_corruptions_lose_no_message_and_name_the_corrupter(
    outbox: OutboxTables, role: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine, some rows are changed before each of three marks in a row. The
    # sweeper would leave these out for ten minutes.
    monkeypatch.setattr(unmarkable_rows, "MOST_MISSES", CORRUPTIONS)
    outbox.drop_unique_index()
    outbox.allow_nulls()
    outbox.execute(LOOSEN)
    for column in ("due_at", "attempts"):
        outbox.execute(f"ALTER TABLE poisonguard_outbox ALTER {column} DROP NOT NULL")
    name, dsn = role
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    settings: dict[str, Any] = {
        "lock_seconds": 0.1,
        "claim_seconds": 1.0,
        "window_rows": 50,
    }
    with (
        closing(Corrupter(outbox, name)) as corrupter,
        sweeping(dsn, publisher, reporter=reporter, **settings) as sweeper,
        in_thread(sweeper) as thread,
    ):
        for number in range(CORRUPTIONS):
            outbox.put_many(ROWS_AT_ONCE, first=ROWS_AT_ONCE * number + 1)
            corrupter.corrupt()
            assert thread.is_alive()
        wait_until(
            lambda: (
                not outbox.waiting
                and not outbox.count(
                    "quarantined_at IS NOT NULL AND reported_at IS NULL"
                )
            ),
            describe=lambda: (sweeper.errors.errors, outbox.waiting),
        )
        assert thread.is_alive()
        errors = sweeper.errors.errors

    # Each row that is marked as sent, and was not changed after that, was sent.
    sent_ids = {
        (message.message_id, message.body) for message in publisher.sent_messages
    }
    assert {*outbox.execute(IS_SENT_AS_IT_IS)} <= sent_ids
    others = outbox.count("sent_at IS NULL AND duplicate_of IS NULL")
    assert others == len(outbox.reasons()) == len(reporter.by_row()) > 0
    # Who was quarantined was changed, or has the id of a changed one.
    assert {row.writer.application for row in reporter.rows} == {"corrupter"}
    total = ROWS_AT_ONCE * CORRUPTIONS
    assert outbox.count("sent_at IS NOT NULL") > total / 2
    assert sum(error.count for error in errors) > 0
    # Sent again: where a claim or a mark was taken away while it was sent.
    assert max(publisher.counts.values()) <= 2


def test_a_database_that_restarts_loses_no_message(tmp_path: Path) -> None:
    folder, port = tmp_path / "postgres", free_port()
    postgres.prepare(folder)
    program = postgres.program(folder, port=port)
    dsn = postgres.url(folder, port=port)
    publisher = RecordingPublisher()
    with process_control.running(program, folder=folder):
        tables = OutboxTables(dsn)
        tables.make()
        tables.put_many(600)
        tables.close()
        # A window of rows that could not be marked is claimed for some seconds more.
        sweeper_context = sweeping(dsn, publisher, window_rows=10, claim_seconds=5.0)
        sweeper = sweeper_context.__enter__()
        work_until(sweeper, lambda: len(publisher.sent_messages) > 100)
    for _ in range(10):
        sweeper.work_once()
    assert sweeper.health().breaker_opened_at is not None
    with process_control.running(program, folder=folder):
        tables = OutboxTables(dsn)
        work_until(sweeper, lambda: not tables.waiting)
        tables.close()
        sweeper_context.__exit__(None, None, None)
    assert publisher.counts.keys() == {f"m-{number}" for number in range(1, 601)}
    assert publisher.counts.total() <= 610


def test_a_database_that_hangs_is_given_up_and_found_again(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(10)
    publisher = RecordingPublisher()
    blocker = psycopg.connect(outbox.dsn)
    with sweeping(outbox.dsn, publisher, lock_seconds=0.05) as sweeper:
        sweeper.work_once()
        outbox.put_many(10, first=11)
        blocker.execute("LOCK poisonguard_outbox")
        work_until(sweeper, lambda: sweeper.health().breaker_opened_at)
        assert "LockNotAvailable" in sweeper.errors.errors[0].kind
        blocker.rollback()
        work_until(sweeper, lambda: not outbox.waiting)
    blocker.close()
    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 21)}


def test_a_session_that_ends_at_its_first_statement_leaves_nothing_open(
    outbox: OutboxTables,
) -> None:
    connections = list[psycopg.Connection[Any]]()

    def connect() -> psycopg.Connection[Any]:
        connection = connecting_to(outbox.dsn)()
        outbox.execute(
            "SELECT pg_terminate_backend(%s, 60000)", [connection.info.backend_pid]
        )
        connections.append(connection)
        return connection

    threads = {*threading.enumerate()}
    with sweeping(outbox.dsn, RecordingPublisher(), connect=connect) as sweeper:
        for _ in range(3):
            sweeper.work_once()
        assert {error.stage for error in sweeper.errors.errors} == {"connect"}
    assert {*threading.enumerate()} <= threads
    assert [connection.closed for connection in connections] == [True] * 3
