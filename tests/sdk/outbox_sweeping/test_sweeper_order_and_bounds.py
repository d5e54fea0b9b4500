"""Order by key, bounded windows, back-off, and brokers that go away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from poisonguard.errors import Away, Misconfigured
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind, SendOutcome
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_stage import (
    RecordingPublisher,
    RecordingReporter,
    sweeping,
    work_until,
)

UNSENT = SendOutcome(kind=SendKind.UNSENT, detail="full")
UNKNOWN = SendOutcome(kind=SendKind.UNKNOWN, detail="closed")
SENT = SendOutcome(kind=SendKind.SENT)


@pytest.mark.parametrize("key", ["", "k"], ids=["without a key", "with a key"])
def test_rows_wait_behind_an_earlier_one_of_their_key(
    outbox: OutboxTables, key: str
) -> None:
    outbox.put("m-1", key=key)
    publisher = RecordingPublisher()
    answers = iter([UNSENT])
    publisher.answer = lambda m: next(answers, SENT) if m.message_id == "m-1" else SENT

    with sweeping(
        outbox.dsn, publisher, row_pause=60.0, longest_row_pause=60.0
    ) as sweeper:
        sweeper.work_once()
        outbox.put("m-2", key=key)
        outbox.put("other", key="another")
        outbox.put("elsewhere", topic="invoices", key=key)
        sweeper.work_once()
        outbox.execute("UPDATE poisonguard_outbox SET due_at = now()")
        work_until(sweeper, lambda: not outbox.waiting)

    sent_ids = [message.message_id for message in publisher.sent_messages]
    assert sent_ids.index("m-1") < sent_ids.index("m-2")
    assert sent_ids.index("other") < sent_ids.index("m-1")
    assert sent_ids.index("elsewhere") < sent_ids.index("m-1")
    assert publisher.counts.total() == 4


def test_a_window_ends_at_its_bytes(outbox: OutboxTables) -> None:
    for number in range(6):
        outbox.put(f"m-{number}", bytes(40_000))
    outbox.put("large", bytes(200_000))
    outbox.put("last", b"small")
    publisher = RecordingPublisher()

    with sweeping(outbox.dsn, publisher, window_bytes=100_000) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    sizes = [len(window) for window in publisher.windows]
    assert sizes == [2, 2, 2, 1, 1]


def test_rows_beyond_all_bounds_are_quarantined_unread(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.allow_nulls()
    outbox.execute(
        "ALTER TABLE poisonguard_outbox DROP CONSTRAINT poisonguard_outbox_names,"
        " DROP CONSTRAINT poisonguard_outbox_header_pairs"
    )
    outbox.execute("DROP INDEX poisonguard_outbox_waiting_by_key")
    good = outbox.put("good")
    bad = [
        outbox.put("x" * 2**20),
        outbox.put("empty topic", topic=""),
        outbox.put("no topic", topic=None),
        outbox.put("long topic", topic="t" * 300_000),
        outbox.put("body", bytes(3_000_000)),
        outbox.put("odd", headers=[b"name"]),
        outbox.put("null", headers=[b"name", None]),
        outbox.put("no headers", headers=None),
        outbox.put(None),
    ]
    outbox.execute(
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, headers)"
        " SELECT 'shop', 'headers', 'orders', '', array_agg(sha256(n::text::bytea))"
        " FROM generate_series(1, 80000) AS n"
    )
    outbox.execute(
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, headers)"
        " VALUES ('shop', 'nested', 'orders', '', '{{a,b},{c,d}}')"
    )
    for due in ("infinity", "9999-01-01"):
        outbox.execute(
            "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, due_at)"
            f" VALUES ('shop', 'due {due}', 'orders', '', '{due}')"
        )
    publisher, reporter = RecordingPublisher(), RecordingReporter()

    with sweeping(
        outbox.dsn, publisher, reporter=reporter, row_bytes=2_000_000
    ) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        work_until(sweeper, lambda: len(reporter.rows) == len(bad) + 4)

    assert [message.message_id for message in publisher.sent_messages] == ["good"]
    reasons = outbox.reasons()
    assert good not in reasons
    assert [reasons[row] for row in bad] == [
        "message_id has more than 255 characters",
        "topic is empty",
        "topic is NULL",
        "topic has more than 255 characters",
        "body has 3,000,000 bytes: too many",
        "headers has 1 parts: no pairs",
        "headers holds NULL or an array",
        "headers is NULL",
        "message_id is NULL",
    ]
    others = [reason for row, reason in reasons.items() if row not in bad]
    assert others[0].startswith("headers take ")
    assert others[1:] == [
        "headers holds NULL or an array",
        *(["due_at is too far ahead: a clock was wrong"] * 2),
    ]
    assert [e.kind for e in sweeper.errors.errors] == ["row quarantined"]


def test_rows_wait_while_the_broker_is_away_and_are_sent_when_it_returns(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(30)
    publisher = RecordingPublisher()

    def be_away(batch: Sequence[OutboxMessage]) -> None:
        raise Away("no broker")

    publisher.before = be_away
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: sweeper.health().breaker_opened_at)
        assert outbox.count("claim_token IS NOT NULL") == 0
        assert sweeper.health().breaker_reason == "failed to publish: no broker"
        publisher.before = lambda batch: None
        work_until(sweeper, lambda: not outbox.waiting)

        assert sweeper.health().breaker_opened_at is None

    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 31)}
    # Its absence is no attempt of a row.
    assert outbox.count("attempts <> 1") == 0
    (error,) = sweeper.errors.errors
    assert (error.stage, error.kind) == ("publish", "Away")


def test_a_row_that_closes_the_channel_is_found_and_quarantined(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(300)
    (poison,) = outbox.row_ids(["m-123"])
    publisher = RecordingPublisher()
    is_closed = False

    def answer(message: OutboxMessage) -> SendOutcome:
        nonlocal is_closed
        is_closed = is_closed or message.message_id == "m-123"
        return UNKNOWN if is_closed else SENT

    def open_channel(batch: Sequence[OutboxMessage]) -> None:
        # The broker's answers come last, if the channel lives until then.
        nonlocal is_closed
        is_closed = any(message.message_id == "m-123" for message in batch)

    publisher.answer, publisher.before = answer, open_channel
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    assert publisher.counts == {f"m-{n}": 1 for n in range(1, 301) if n != 123}
    assert outbox.reasons() == {
        poison: "the broker gave no answer 5 times while the row was alone: closed"
    }


def test_no_row_is_quarantined_where_the_broker_answers_to_none(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(5)
    publisher = RecordingPublisher()
    publisher.answer = lambda message: UNKNOWN

    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: len(publisher.windows) > 60)
        assert outbox.reasons() == {}
        publisher.answer = lambda message: SENT
        work_until(sweeper, lambda: not outbox.waiting)

    assert publisher.counts == {f"m-{n}": 1 for n in range(1, 6)}


def test_an_unsent_row_backs_off_and_is_sent_under_its_id(
    outbox: OutboxTables,
) -> None:
    row = outbox.put("m", topic="full")
    publisher = RecordingPublisher()
    publisher.answer = lambda message: UNSENT
    pauses: list[float] = []

    with sweeping(
        outbox.dsn, publisher, row_pause=20.0, longest_row_pause=6_000.0
    ) as sweeper:
        for _ in range(12):
            sweeper.work_once()
            ((pause,),) = outbox.execute(
                "SELECT extract(epoch FROM due_at - now())::float8"
                " FROM poisonguard_outbox"
            )
            pauses.append(pause)
            outbox.execute("UPDATE poisonguard_outbox SET due_at = now()")
        publisher.answer = lambda message: SENT
        work_until(sweeper, lambda: not outbox.waiting)

    assert all(0 < pause <= 6_000 for pause in pauses)
    assert max(pauses[6:]) > 100 > pauses[0]
    assert outbox.column("attempts", row) == 13
    assert {message.message_id for message in publisher.sent_messages} == {"m"}


def test_a_publisher_that_answers_nonsense_is_told(outbox: OutboxTables) -> None:
    outbox.put_many(3)
    calls = 0

    def publish(batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        nonlocal calls
        calls += 1
        return [SENT] * (len(batch) if calls > 1 else 1)

    with sweeping(outbox.dsn, publish) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    kinds = {error.kind for error in sweeper.errors.errors}
    assert kinds == {"Misconfigured"}


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(Misconfigured, match="window_rows must be more than 0"):
        SweeperSettings(window_rows=0)
    with pytest.raises(Misconfigured, match="ids_for is shorter than rows_for"):
        SweeperSettings(ids_for=SweeperSettings().rows_for / 2)


def test_figures_follow_what_waits(outbox: OutboxTables) -> None:
    outbox.put_many(20)
    outbox.put("held", topic="invoices")
    publisher = RecordingPublisher()
    publisher.answer = lambda m: UNSENT if m.topic == "invoices" else SENT

    with sweeping(outbox.dsn, publisher, figures_every=0.01, row_pause=60.0) as sweeper:
        # They are measured before the first look at the clock, and after.
        work_until(
            sweeper,
            lambda: (
                outbox.execute(
                    "SELECT topic, waiting_rows, waiting_bytes"
                    " FROM poisonguard_outbox_figures ORDER BY topic"
                )
                == [("invoices", 1, 4)]
            ),
        )
        outbox.execute("UPDATE poisonguard_outbox SET due_at = now()")
        publisher.answer = lambda m: SENT
        work_until(
            sweeper,
            lambda: (
                outbox.execute(
                    "SELECT topic, waiting_rows, waiting_bytes, oldest_at"
                    " FROM poisonguard_outbox_figures"
                )
                == [("invoices", 0, 0, None)]
            ),
        )


def test_pruning_deletes_what_was_sent_and_nothing_else(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.put("sent", b"one")
    outbox.put("sent", b"one")
    outbox.put("refused", b"bad")
    publisher = RecordingPublisher()
    publisher.answer = lambda m: (
        SendOutcome(kind=SendKind.REFUSED) if m.body == b"bad" else SENT
    )
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
    outbox.put("waiting", topic="later")
    by_hand = outbox.put("marked by hand")
    outbox.execute(
        "UPDATE poisonguard_outbox SET sent_at = now() WHERE row_id = %s", [by_hand]
    )
    outbox.execute(
        "UPDATE poisonguard_outbox SET created_at = created_at - interval '8 days',"
        " sent_at = sent_at - interval '8 days',"
        " due_at = CASE WHEN topic = 'later' THEN now() + interval '1 day'"
        "  ELSE due_at END"
    )
    with sweeping(outbox.dsn, publisher, prune_every=0.01) as sweeper:
        work_until(sweeper, lambda: outbox.count() == 3)
        for _ in range(5):
            sweeper.work_once()

    rows = outbox.execute("SELECT message_id FROM poisonguard_outbox ORDER BY row_id")
    assert rows == [("refused",), ("waiting",), ("marked by hand",)]
    assert outbox.execute("SELECT message_id FROM poisonguard_outbox_sent") == [
        ("sent",)
    ]
