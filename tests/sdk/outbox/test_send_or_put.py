"""A message is sent at once, or written where that fails, and lost in neither way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from poisonguard import Away, MessageIdTaken, Misconfigured, OutboxFull, Refused
from poisonguard.outbox import (
    Outbox,
    OutboxLimits,
    OutboxMessage,
    SendKind,
    SendOutcome,
    backlog_size,
)
from tests.sdk.outbox.executed_statements import ExecutedStatements

SENT = SendOutcome(kind=SendKind.SENT)
IDLE = 0


class Broker:
    """A broker's client that answers as it is set up."""

    def __init__(self, answer: SendOutcome | Exception = SENT) -> None:
        self.answer = answer
        self.messages: list[OutboxMessage] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def publish(self, batch: Sequence[OutboxMessage]) -> Sequence[SendOutcome]:
        self.messages += batch
        self.meanwhile()
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer]


@pytest.fixture(params=["commits by itself", "does not"])
def connection(
    request: pytest.FixtureRequest, outbox_dsn: str
) -> Iterator[psycopg.Connection]:
    autocommit = request.param == "commits by itself"
    with psycopg.connect(outbox_dsn, autocommit=autocommit) as connection:
        yield connection


@pytest.fixture
def outbox(connection: psycopg.Connection) -> Outbox:
    return Outbox(connection, producer="shop")


def waiting(dsn: str) -> list[tuple[Any, ...]]:
    """Give the rows as another connection sees them: what was committed."""
    with psycopg.connect(dsn) as connection:
        query = (
            "SELECT message_id, topic, key, body FROM poisonguard_outbox"
            " WHERE sent_at IS NULL ORDER BY row_id"
        )
        return connection.execute(query).fetchall()


def test_what_the_broker_has_is_not_written(
    connection: psycopg.Connection, outbox: Outbox, outbox_dsn: str
) -> None:
    broker = Broker()

    identity = outbox.send_or_put(
        broker.publish, "orders", b"one", headers={"h": "v"}, key="42"
    )

    assert broker.messages == [
        OutboxMessage(
            producer="shop",
            message_id=identity,
            topic="orders",
            body=b"one",
            headers=((b"h", b"v"),),
            key="42",
        )
    ]
    assert waiting(outbox_dsn) == []
    assert connection.info.transaction_status == IDLE


@pytest.mark.parametrize(
    "answer",
    [
        Away("The broker is away."),
        SendOutcome(kind=SendKind.UNSENT, detail="busy"),
        SendOutcome(kind=SendKind.UNKNOWN, detail="no answer"),
    ],
    ids=["away", "unsent", "unknown"],
)
def test_what_the_broker_may_lack_is_written_under_the_same_id_and_committed(
    connection: psycopg.Connection,
    outbox: Outbox,
    outbox_dsn: str,
    answer: SendOutcome | Exception,
) -> None:
    broker = Broker(answer)

    identity = outbox.send_or_put(broker.publish, "orders", b"one", key="42")

    assert [message.message_id for message in broker.messages] == [identity]
    assert waiting(outbox_dsn) == [(identity, "orders", "42", b"one")]
    assert connection.info.transaction_status == IDLE


def test_what_the_broker_refuses_is_refused(outbox: Outbox, outbox_dsn: str) -> None:
    broker = Broker(SendOutcome(kind=SendKind.REFUSED, detail="too large"))

    with pytest.raises(Refused, match="refuses message 'm-7' .*'orders': too large"):
        outbox.send_or_put(broker.publish, "orders", b"one", message_id="m-7")

    assert waiting(outbox_dsn) == []


def test_no_transaction_is_open_while_it_is_published(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    broker, states = Broker(), list[int]()
    broker.meanwhile = lambda: states.append(connection.info.transaction_status)

    outbox.send_or_put(broker.publish, "orders", b"one")

    assert states == [IDLE]


def test_inside_a_transaction_it_is_refused(
    connection: psycopg.Connection, outbox: Outbox, outbox_dsn: str
) -> None:
    broker = Broker()
    if not connection.autocommit:
        connection.execute("SELECT 1")  # begins one, as any statement does
        with pytest.raises(Misconfigured, match="send_or_put inside a transaction"):
            outbox.send_or_put(broker.publish, "orders", b"one")
        connection.rollback()
    with (
        connection.transaction(),
        pytest.raises(Misconfigured, match="inside a transaction: put what belongs"),
    ):
        outbox.send_or_put(broker.publish, "orders", b"one")

    assert broker.messages == []
    assert waiting(outbox_dsn) == []


def test_in_a_failed_transaction_it_is_refused(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
        try:
            connection.execute("SELECT 1 / 0")
        finally:
            with pytest.raises(Misconfigured, match="inside a transaction"):
                outbox.send_or_put(Broker().publish, "orders", b"one")


@pytest.mark.parametrize(
    ("key", "other", "is_written"),
    [("42", "42", True), ("", "", True), ("42", "7", False), ("", "42", False)],
)
def test_it_is_written_behind_what_waits_for_its_topic_and_key(
    outbox_dsn: str, outbox: Outbox, key: str, other: str, *, is_written: bool
) -> None:
    broker = Broker(Away())
    first = outbox.send_or_put(broker.publish, "orders", b"one", key=other)
    broker.answer = SENT

    second = outbox.send_or_put(broker.publish, "orders", b"two", key=key)
    outbox.send_or_put(broker.publish, "bills", b"three", key=key)

    ids = [row[0] for row in waiting(outbox_dsn)]
    assert ids == ([first, second] if is_written else [first])
    assert (second in {each.message_id for each in broker.messages}) is not is_written


@pytest.mark.parametrize(
    "mark", ["sent_at = now()", "duplicate_of = 7", "quarantined_at = now()"]
)
def test_what_no_longer_waits_does_not_hold_it_up(
    outbox_dsn: str, outbox: Outbox, mark: str
) -> None:
    broker = Broker(Away())
    outbox.send_or_put(broker.publish, "orders", b"one")
    with psycopg.connect(outbox_dsn) as sweeper:
        sweeper.execute(f"UPDATE poisonguard_outbox SET {mark}")
    broker.answer = SENT

    identity = outbox.send_or_put(broker.publish, "orders", b"two")

    assert broker.messages[-1].message_id == identity


def test_another_error_of_publish_is_raised(outbox: Outbox, outbox_dsn: str) -> None:
    broker = Broker(ZeroDivisionError("a fault of publish"))

    with pytest.raises(ZeroDivisionError, match="a fault of publish"):
        outbox.send_or_put(broker.publish, "orders", b"one")

    assert waiting(outbox_dsn) == []


@pytest.mark.parametrize(
    "answers", [None, [], [SENT, SENT], [True], "s", SENT], ids=repr
)
def test_an_answer_that_is_none_is_named(outbox: Outbox, answers: Any) -> None:
    with pytest.raises(Misconfigured, match="publish answers .* Whether .* 'm-7'"):
        outbox.send_or_put(lambda _: answers, "orders", b"one", message_id="m-7")


def test_what_can_be_neither_sent_nor_written_is_told_with_its_id(
    connection: psycopg.Connection, outbox_dsn: str
) -> None:
    limits = OutboxLimits(rows=1)
    outbox = Outbox(connection, producer="shop", limits=limits)
    outbox.send_or_put(Broker(Away()).publish, "bills", b"one")
    backlog_size._cache.clear()
    broker = Broker(SendOutcome(kind=SendKind.UNKNOWN, detail="no answer"))

    with pytest.raises(OutboxFull) as full:
        outbox.send_or_put(broker.publish, "orders", b"one", message_id="m-7")

    (note,) = full.value.__notes__
    assert note == (
        "Message 'm-7' is not in the outbox, and the broker may have it: no answer"
    )
    assert len(waiting(outbox_dsn)) == 1
    assert connection.info.transaction_status == IDLE


def test_a_retry_under_the_same_id_is_not_written_twice(
    outbox: Outbox, outbox_dsn: str
) -> None:
    broker = Broker(SendOutcome(kind=SendKind.UNKNOWN))
    outbox.send_or_put(broker.publish, "orders", b"one", message_id="m-7")

    with pytest.raises(MessageIdTaken) as conflict:
        outbox.send_or_put(broker.publish, "orders", b"one", message_id="m-7")

    assert conflict.value.is_same
    assert len(waiting(outbox_dsn)) == 1


def test_a_message_that_cannot_be_sent_reaches_neither(outbox: Outbox) -> None:
    broker = Broker()

    with pytest.raises(Refused, match="body is None"):
        outbox.send_or_put(broker.publish, "orders", None)  # type: ignore[arg-type]

    assert broker.messages == []


def test_where_it_is_sent_one_look_is_all_that_the_database_sees(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    statements = ExecutedStatements(connection)

    outbox.send_or_put(Broker().publish, "orders", b"one")

    (text,) = statements.texts
    assert text.startswith("SELECT EXISTS ")


def test_a_look_takes_no_longer_beside_many_sent_rows(
    connection: psycopg.Connection, outbox: Outbox
) -> None:
    connection.execute(
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, sent_at)"
        " SELECT 'shop', n::text, 'orders', '', CASE WHEN n > 7 THEN now() END"
        " FROM generate_series(1, 3000) n"
    )
    connection.commit()
    connection.execute("ANALYZE poisonguard_outbox")
    plan = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    rows = connection.execute(
        plan + outbox._statements.is_waiting, ["orders", "42"]
    ).fetchone()
    connection.rollback()

    assert rows is not None
    assert rows[0][0]["Plan"]["Shared Hit Blocks"] < 10
