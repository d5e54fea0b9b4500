"""A sweeper sends each message once, and what it cannot send blocks no other."""

from __future__ import annotations

from poisonguard.outbox.outcome import SendKind, SendOutcome
from poisonguard.outbox.postgres_schema import schema
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
    sweeping,
    work_until,
)


def test_messages_are_sent_in_their_order_and_marked(outbox: OutboxTables) -> None:
    outbox.put("m-1", b"\x00\xff", key="k", headers=[b"name", b"\xfe"])
    outbox.put_many(1_200, first=2)
    publisher = RecordingPublisher()

    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    assert [m.message_id for m in publisher.sent_messages] == [
        f"m-{n}" for n in range(1, 1_202)
    ]
    first = publisher.sent_messages[0]
    assert (first.producer, first.topic, first.key) == ("shop", "orders", "k")
    assert (first.body, first.headers) == (b"\x00\xff", ((b"name", b"\xfe"),))
    assert [len(window) for window in publisher.windows] == [500, 500, 201]
    assert sweeper.errors.errors == []


def test_the_schema_of_the_tables_may_have_any_name(outbox: OutboxTables) -> None:
    name = "100% {outbox} %(row_ids)s 'shop'"
    outbox.execute(f'CREATE SCHEMA "{name}"')
    outbox.execute(f'SET search_path = "{name}"')
    outbox.connection.execute(schema())
    outbox.put_many(3)
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher, schema=name) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        assert sweeper.errors.errors == []
    assert len(publisher.sent_messages) == 3
    outbox.execute(f'DROP SCHEMA "{name}" CASCADE')


def test_four_bad_rows_of_a_thousand_block_no_other(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.allow_nulls()
    outbox.put_many(499)
    one = outbox.put("twice", b"one")
    undecodable = outbox.put("no body", None)
    other = outbox.put("twice", b"other")
    refused = outbox.put("refused", b"bad")
    outbox.put_many(499, first=500)
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    publisher.answer = lambda message: SendOutcome(
        kind=SendKind.REFUSED if message.body == b"bad" else SendKind.SENT,
        detail="too bad",
    )

    with sweeping(outbox.dsn, publisher, reporter=reporter) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting and len(reporter.rows) == 4)

    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 999)}
    twice = f"two messages under one id: rows {one}, {other} are different"
    assert outbox.reasons() == {
        one: twice,
        undecodable: "body is NULL",
        other: twice,
        refused: "the broker refuses it: too bad",
    }
    assert {row.row_id: row.cause for row in reporter.rows} == {
        one: "rejected",
        undecodable: "undecodable",
        other: "rejected",
        refused: "rejected",
    }
    assert outbox.column("attempts", undecodable) == 0
    for row in reporter.rows:
        assert row.writer.application == "shop"
        assert row.writer.user
        assert int(row.writer.transaction) > 0
    assert reporter.by_row()[other].body == b"other"
    assert outbox.count("reported_at IS NOT NULL") == 4
