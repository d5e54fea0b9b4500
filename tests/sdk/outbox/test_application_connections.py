"""Connections of all libraries keep one contract, inside a transaction and outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from poisonguard import Away, MessageIdTaken, Misconfigured, OutboxFull, Refused
from poisonguard.outbox import (
    Outbox,
    OutboxLimits,
    OutboxMessage,
    SendKind,
    SendOutcome,
    backlog_size,
)
from tests.sdk.outbox.application_connections import (
    CALLERS,
    WITHOUT_TRANSACTIONS,
    OutboxCaller,
    engine_of,
    open_transactions,
)

HEADERS: Any = {"h": "ü", b"\xfe": b"\xff"}
DUE = datetime(2026, 11, 27, 8, tzinfo=UTC)
ROWS = "SELECT message_id FROM poisonguard_outbox ORDER BY row_id"
MESSAGE = """
SELECT producer, topic, key, body, headers, due_at FROM poisonguard_outbox
"""
LIMITS = OutboxLimits(rows=1)


class Fault(Exception):
    """What an application raises in its transaction."""


class AnsweringBroker:
    """Answers as it is set up, and notes what transactions are open meanwhile."""

    def __init__(self, dsn: str, kind: SendKind | None) -> None:
        self._dsn, self._kind = dsn, kind
        self.messages: list[OutboxMessage] = []
        self.open_meanwhile: list[int] = []

    def __call__(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        self.messages += batch
        self.open_meanwhile.append(open_transactions(self._dsn))
        if self._kind is None:
            raise Away
        return [SendOutcome(kind=self._kind, detail="too large")]


@pytest.fixture(params=CALLERS)
def caller(
    request: pytest.FixtureRequest, outbox_dsn: str, django_db_blocker: Any
) -> Iterator[OutboxCaller]:
    with django_db_blocker.unblock(), CALLERS[request.param](outbox_dsn) as caller:
        yield caller


@pytest.fixture(params=CALLERS | WITHOUT_TRANSACTIONS)
def any_caller(
    request: pytest.FixtureRequest, outbox_dsn: str, django_db_blocker: Any
) -> Iterator[OutboxCaller]:
    calling = (CALLERS | WITHOUT_TRANSACTIONS)[request.param]
    with django_db_blocker.unblock(), calling(outbox_dsn) as caller:
        yield caller


@pytest.fixture
def outbox(caller: OutboxCaller) -> Outbox:
    return Outbox(caller.connection, producer="shop")


def ids(dsn: str) -> list[str]:
    """Return what was committed."""
    with psycopg.connect(dsn) as connection:
        return [message_id for (message_id,) in connection.execute(ROWS)]


# put


def test_a_message_is_there_whole_with_the_commit(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    with caller.begin():
        caller.execute("SELECT 1")
        message_id = outbox.put(
            "it's %s", b"\0\xff", headers=HEADERS, key="\\'%", due_at=DUE
        )
        assert ids(outbox_dsn) == []

    assert ids(outbox_dsn) == [message_id]
    with psycopg.connect(outbox_dsn) as connection:
        headers = [b"h", "ü".encode(), b"\xfe", b"\xff"]
        assert connection.execute(MESSAGE).fetchall() == [
            ("shop", "it's %s", "\\'%", b"\0\xff", headers, DUE)
        ]


def test_a_message_without_headers_is_there_too(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    with caller.begin():
        outbox.put("orders", b"")

    assert len(ids(outbox_dsn)) == 1


def test_a_rolled_back_message_is_gone(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    with pytest.raises(Fault), caller.begin():
        outbox.put("orders", b"one")
        raise Fault

    assert ids(outbox_dsn) == []


def test_a_message_of_a_savepoint_that_was_rolled_back_is_gone_alone(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    with caller.begin():
        outbox.put("orders", b"one", message_id="m-7")
        with pytest.raises(Fault), caller.begin_savepoint():
            outbox.put("orders", b"two", message_id="m-8")
            raise Fault
        with caller.begin_savepoint():
            outbox.put("orders", b"three", message_id="m-9")

    assert ids(outbox_dsn) == ["m-7", "m-9"]


def test_a_put_begins_a_transaction_unless_the_connection_commits_by_itself(
    any_caller: OutboxCaller, outbox_dsn: str
) -> None:
    outbox = Outbox(any_caller.connection, producer="shop")
    message_id = outbox.put("orders", b"one")

    assert ids(outbox_dsn) == ([message_id] if any_caller.commits_by_itself else [])
    assert open_transactions(outbox_dsn) == int(not any_caller.commits_by_itself)
    any_caller.commit()
    assert ids(outbox_dsn) == [message_id]
    assert open_transactions(outbox_dsn) == 0


def test_an_id_that_is_taken_leaves_the_transaction_as_it_is(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    with caller.begin():
        outbox.put("orders", b"one", headers=HEADERS, message_id="m-7")
        with pytest.raises(MessageIdTaken) as same:
            outbox.put("orders", b"one", headers=HEADERS, message_id="m-7")
        with pytest.raises(MessageIdTaken) as other:
            outbox.put("orders", b"two", headers=HEADERS, message_id="m-7")
        outbox.put("orders", b"three", message_id="m-8")

    assert (same.value.is_same, other.value.is_same) == (True, False)
    assert ids(outbox_dsn) == ["m-7", "m-8"]


def test_a_full_outbox_leaves_the_transaction_as_it_is(
    caller: OutboxCaller, outbox_dsn: str
) -> None:
    outbox = Outbox(caller.connection, producer="shop", limits=LIMITS)
    with caller.begin():
        outbox.put("orders", b"one", message_id="m-7")
        backlog_size._cache.clear()
        with pytest.raises(OutboxFull, match="has 1 rows waiting, and its limit is 1"):
            outbox.put("orders", b"two")
        assert caller.execute("SELECT 42") == [(42,)]

    assert ids(outbox_dsn) == ["m-7"]


def test_a_missing_table_is_explained(caller: OutboxCaller) -> None:
    outbox = Outbox(caller.connection, producer="shop", schema="nowhere")

    with pytest.raises(Misconfigured, match="its tables are missing"):
        outbox.put("orders", b"one")
    caller.rollback()


def test_a_transaction_that_has_failed_takes_no_message(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    with pytest.raises(Exception, match="division by zero"), caller.begin():
        try:
            caller.execute("SELECT 1 / 0")
        finally:
            if open_transactions(outbox_dsn):
                with pytest.raises(Exception, match="current transaction is aborted"):
                    outbox.put("orders", b"one")

    assert ids(outbox_dsn) == []


# send_or_put, wait_for_room


@pytest.mark.parametrize("kind", [None, SendKind.UNSENT, SendKind.UNKNOWN], ids=str)
def test_what_the_broker_may_lack_is_written_under_its_id_and_committed(
    any_caller: OutboxCaller, outbox_dsn: str, kind: SendKind | None
) -> None:
    outbox = Outbox(any_caller.connection, producer="shop")
    broker = AnsweringBroker(outbox_dsn, kind)

    first = outbox.send_or_put(broker, "orders", b"one", key="42")
    second = outbox.send_or_put(broker, "orders", b"two", key="42")

    # The second is behind the first, and is not tried.
    assert [message.message_id for message in broker.messages] == [first]
    assert ids(outbox_dsn) == [first, second]
    assert (broker.open_meanwhile, open_transactions(outbox_dsn)) == ([0], 0)


def test_what_the_broker_takes_or_refuses_is_not_written(
    any_caller: OutboxCaller, outbox_dsn: str
) -> None:
    outbox = Outbox(any_caller.connection, producer="shop")
    outbox.send_or_put(AnsweringBroker(outbox_dsn, SendKind.SENT), "orders", b"one")
    with pytest.raises(Refused, match="too large"):
        outbox.send_or_put(
            AnsweringBroker(outbox_dsn, SendKind.REFUSED), "orders", b"two"
        )

    assert (ids(outbox_dsn), open_transactions(outbox_dsn)) == ([], 0)


def test_both_are_refused_inside_a_transaction(
    caller: OutboxCaller, outbox: Outbox, outbox_dsn: str
) -> None:
    broker = AnsweringBroker(outbox_dsn, SendKind.SENT)

    with caller.begin():
        caller.execute("SELECT 1")
        with pytest.raises(Misconfigured, match="send_or_put inside a transaction"):
            outbox.send_or_put(broker, "orders", b"one")
        with caller.begin_savepoint():
            with pytest.raises(Misconfigured, match="send_or_put inside a transaction"):
                outbox.send_or_put(broker, "orders", b"one")
            with pytest.raises(Misconfigured, match="wait_for_room inside a transact"):
                outbox.wait_for_room("orders", 1)
        message_id = outbox.put("orders", b"two")

    assert broker.messages == []
    assert ids(outbox_dsn) == [message_id]


def test_both_are_refused_after_a_statement_that_began_a_transaction(
    any_caller: OutboxCaller, outbox_dsn: str
) -> None:
    outbox = Outbox(any_caller.connection, producer="shop")
    any_caller.execute("SELECT 1")
    if not open_transactions(outbox_dsn):
        any_caller.rollback()  # SQLAlchemy calls it one all the same
        outbox.send_or_put(AnsweringBroker(outbox_dsn, SendKind.SENT), "orders", b"one")
        return
    with pytest.raises(Misconfigured, match="send_or_put inside a transaction"):
        outbox.send_or_put(AnsweringBroker(outbox_dsn, None), "orders", b"one")
    with pytest.raises(Misconfigured, match="wait_for_room inside a transaction"):
        outbox.wait_for_room("orders", 1)
    any_caller.rollback()

    assert ids(outbox_dsn) == []


def test_waiting_for_room_leaves_no_transaction_open(
    any_caller: OutboxCaller, outbox_dsn: str
) -> None:
    outbox = Outbox(any_caller.connection, producer="shop", limits=LIMITS)
    assert outbox.wait_for_room("orders", 0)
    assert open_transactions(outbox_dsn) == 0
    outbox.put("orders", b"one")
    any_caller.commit()
    backlog_size._cache.clear()

    assert not outbox.wait_for_room("orders", 0.1)
    assert open_transactions(outbox_dsn) == 0


# What only SQLAlchemy has


@pytest.mark.parametrize("name", WITHOUT_TRANSACTIONS)
def test_autocommit_commits_a_message_at_once_also_in_begin(
    outbox_dsn: str, name: str
) -> None:
    with WITHOUT_TRANSACTIONS[name](outbox_dsn) as caller, caller.begin():
        message_id = Outbox(caller.connection, producer="shop").put("orders", b"one")
        assert ids(outbox_dsn) == [message_id]


@pytest.mark.parametrize("library", ["psycopg", "psycopg2"])
def test_a_session_within_a_transaction_of_its_connection_is_inside_one(
    outbox_dsn: str, library: str
) -> None:
    broker = AnsweringBroker(outbox_dsn, SendKind.SENT)
    with engine_of(outbox_dsn, library).connect() as connection, connection.begin():
        connection.execute(sqlalchemy.text("SELECT 1"))
        with Session(connection) as session:
            outbox = Outbox(session, producer="shop")
            with pytest.raises(Misconfigured, match="send_or_put inside a transaction"):
                outbox.send_or_put(broker, "orders", b"one")
            message_id = outbox.put("orders", b"two")
            session.commit()
        assert ids(outbox_dsn) == []

    assert (ids(outbox_dsn), broker.messages) == ([message_id], [])


def test_a_session_of_a_thread_does_as_well(outbox_dsn: str) -> None:
    session = scoped_session(sessionmaker(engine_of(outbox_dsn, "psycopg")))
    outbox = Outbox(session, producer="shop")
    broker = AnsweringBroker(outbox_dsn, SendKind.UNSENT)

    first = outbox.put("orders", b"one")
    with pytest.raises(Misconfigured, match="send_or_put inside a transaction"):
        outbox.send_or_put(broker, "orders", b"two")
    session.commit()
    second = outbox.send_or_put(broker, "bills", b"three")
    session.remove()

    assert ids(outbox_dsn) == [first, second]


def test_another_database_than_postgres_is_refused() -> None:
    with (
        sqlalchemy.create_engine("sqlite://").connect() as connection,
        pytest.raises(Misconfigured, match="uses pysqlite: give one whose engine uses"),
    ):
        Outbox(connection, producer="shop")
