"""Rows with a repeated message id: equal ones are sent once, others not at all."""

from __future__ import annotations

from typing import Any

import pytest

from poisonguard.outbox.message import OutboxMessage, digest
from tests.sdk.outbox_sweeping.outbox_tables import CLAIMS_END, OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
    sweeping,
    work_until,
)


@pytest.fixture
def article(outbox: OutboxTables) -> OutboxTables:
    """A table whose ids may come twice."""
    outbox.drop_unique_index()
    return outbox


def send_all(outbox: OutboxTables, **settings: Any) -> RecordingPublisher:
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher, **settings) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
    return publisher


@pytest.mark.parametrize("window_rows", [1, 2, 500])
def test_of_equal_rows_one_is_sent_and_named_by_the_others(
    article: OutboxTables, window_rows: int
) -> None:
    first, second, third = (article.put("m", b"same") for _ in range(3))
    other = article.put("n", b"same")

    publisher = send_all(article, window_rows=window_rows)

    assert publisher.counts == {"m": 1, "n": 1}
    duplicates = [article.column("duplicate_of", row) for row in (second, third)]
    assert duplicates == [first, first]
    assert article.column("duplicate_of", first) is None
    assert article.column("duplicate_of", other) is None


@pytest.mark.parametrize("window_rows", [1, 500])
def test_different_rows_of_one_id_are_quarantined(
    article: OutboxTables, window_rows: int
) -> None:
    rows = [article.put("m", body) for body in (b"one", b"other", b"one")]

    publisher = send_all(article, window_rows=window_rows)

    assert publisher.sent_messages == []
    assert [*article.reasons()] == rows
    assert "two messages under one id" in article.reasons()[rows[0]]


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "invoices"},
        {"key": "k"},
        {"headers": [b"name", b"value"]},
    ],
)
def test_more_than_the_body_makes_a_difference(
    article: OutboxTables, change: dict[str, object]
) -> None:
    article.put("m", b"same")
    article.put("m", b"same", **change)  # type: ignore[arg-type]

    publisher = send_all(article)

    assert publisher.sent_messages == []
    assert len(article.reasons()) == 2


def test_what_was_sent_stays_and_what_comes_later_is_quarantined(
    article: OutboxTables,
) -> None:
    first = article.put("m", b"one")
    send_all(article)
    copy, other = article.put("m", b"one"), article.put("m", b"other")

    publisher = send_all(article)

    assert publisher.sent_messages == []
    assert article.column("sent_at", first) is not None
    assert article.column("duplicate_of", copy) == first
    assert "another message with it was sent" in article.reasons()[other]


def test_an_id_that_comes_again_within_30_days_is_noticed(
    outbox: OutboxTables,
) -> None:
    outbox.put("m", b"one")
    outbox.put("n", b"one")
    send_all(outbox)
    outbox.execute("UPDATE poisonguard_outbox SET sent_at = now() - interval '8 days'")
    outbox.execute(
        "UPDATE poisonguard_outbox_sent SET sent_at = now() - interval '29 days'"
    )
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher, prune_every=0.01) as sweeper:
        work_until(sweeper, lambda: not outbox.count())
    other, copy = outbox.put("m", b"other"), outbox.put("n", b"one")

    publisher = send_all(outbox)

    assert publisher.sent_messages == []
    assert [*outbox.reasons()] == [other]
    assert outbox.column("duplicate_of", copy) == copy


def test_a_row_that_a_person_released_is_sent(article: OutboxTables) -> None:
    one, other = article.put("m", b"one"), article.put("m", b"other")
    send_all(article)
    article.execute(
        "UPDATE poisonguard_outbox"
        " SET quarantined_at = NULL, released_at = now(), due_at = now()"
        " WHERE row_id = %s",
        [other],
    )

    publisher = send_all(article)

    assert [message.body for message in publisher.sent_messages] == [b"other"]
    assert [*article.reasons()] == [one]


def test_an_unreadable_row_also_holds_up_its_id(article: OutboxTables) -> None:
    article.allow_nulls()
    rows = [article.put("m", None), article.put("m", b"one")]

    publisher = send_all(article)

    assert publisher.sent_messages == []
    assert [*article.reasons()] == rows


def test_many_rows_of_one_id_are_quarantined_a_part_at_a_time(
    article: OutboxTables,
) -> None:
    article.execute(
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body)"
        " SELECT 'shop', 'm', 'orders', convert_to('b' || n, 'UTF8')"
        " FROM generate_series(1, 3000) AS n"
    )

    publisher = send_all(article)

    assert publisher.sent_messages == []
    assert len(article.reasons()) == 3_000


def test_the_ids_of_sent_messages_are_noted_with_their_digests(
    outbox: OutboxTables,
) -> None:
    outbox.put("m", b"one", key="k", headers=[b"name", b"value"])
    send_all(outbox)

    message = OutboxMessage(
        producer="shop",
        message_id="m",
        topic="orders",
        key="k",
        headers=((b"name", b"value"),),
        body=b"one",
    )
    rows = outbox.execute(
        "SELECT producer, message_id, digest FROM poisonguard_outbox_sent"
    )
    assert rows == [("shop", "m", digest(message))]


def test_ids_of_any_characters_are_noted_and_noticed(article: OutboxTables) -> None:
    ids = ['"', "\\", '\\"', "{a,b}", "NULL", "it's", " ", "\n\t", "ü ∑ 𝄞", "$1 %s"]
    first = {message_id: article.put(message_id) for message_id in ids}
    send_all(article)
    copies = {message_id: article.put(message_id) for message_id in ids}

    publisher = send_all(article)

    noted = article.execute("SELECT message_id FROM poisonguard_outbox_sent")
    assert sorted(message_id for (message_id,) in noted) == sorted(ids)
    assert publisher.sent_messages == []
    assert {
        message_id: article.column("duplicate_of", copy)
        for message_id, copy in copies.items()
    } == first


def test_a_row_that_is_changed_while_it_is_sent_is_quarantined(
    outbox: OutboxTables,
) -> None:
    changed = outbox.put("m", b"one")
    outbox.put("n", b"two")
    publisher = RecordingPublisher()
    publisher.before = lambda batch: outbox.execute(
        "UPDATE poisonguard_outbox SET body = 'other', due_at = now()"
        " WHERE row_id = %s AND body = 'one'",
        [changed],
    )

    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        kinds = {error.kind for error in sweeper.errors.errors}

    assert [message.body for message in publisher.sent_messages] == [b"one", b"two"]
    assert "another message with it was sent" in outbox.reasons()[changed]
    assert kinds == {"rows changed while they were sent", "row quarantined"}


# It writes the row once more, in a subtransaction: no mark finds the claim's version.
CHANGE_AGAIN = """
CREATE FUNCTION change_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() = 1 THEN
        BEGIN
            UPDATE poisonguard_outbox SET attempts = attempts WHERE row_id = NEW.row_id;
        EXCEPTION WHEN others THEN NULL;
        END;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER change_again AFTER UPDATE ON poisonguard_outbox
    FOR EACH ROW WHEN (NEW.topic = 'changed') EXECUTE FUNCTION change_again();
"""
AGE = "UPDATE poisonguard_outbox_sent SET sent_at = now() - interval '29 days'"
AGED = """
SELECT message_id FROM poisonguard_outbox_sent
WHERE sent_at < now() - interval '1 day'
"""


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_row_that_a_trigger_changes_with_each_mark_is_left_out_and_reported(
    outbox: OutboxTables, is_refused: bool
) -> None:
    outbox.execute(CHANGE_AGAIN)
    aged = list[tuple[str]]()
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    if is_refused:
        outbox.allow_nulls()
    row_id = outbox.put("m-1", None if is_refused else b"body", topic="changed")
    outbox.put("m-2")
    with sweeping(outbox.dsn, publisher, reporter=reporter) as sweeper:
        for _ in range(3):
            assert row_id not in sweeper.health().left_out
            sweeper.work_once()
            aged = outbox.execute(AGED)
            outbox.execute(AGE)
            outbox.execute(CLAIMS_END)
        assert row_id in sweeper.health().left_out
        work_until(sweeper, lambda: row_id in reporter.by_row())

    assert publisher.counts == ({"m-2": 1} if is_refused else {"m-1": 1, "m-2": 1})
    assert "a trigger of the table changes it again" in reporter.by_row()[row_id].reason
    assert aged == [("m-2",)]  # while m-1 is not marked, its id is not pruned
    assert sweeper.health().duplicate_count == 0
