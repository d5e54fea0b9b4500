"""The sweeper of the article floods its broker; ours, on the same rows, does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from poisonguard.outbox.message import OutboxMessage
from tests.sdk.outbox_sweeping.outbox_tables import CLAIMS_END, OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
    RecordingPublisher,
    RecordingReporter,
    sweeping,
    work_until,
)

TURNS = 300


class NotUnique(Exception):
    """What JPA raises: it saves an object by its id, and finds two rows."""


class ArticleSweeper:
    """The code of the article, as it describes it: its three faults are marked."""

    def __init__(self, connection: Any, send: Callable[[OutboxMessage], object]):
        self._connection = connection
        self._send = send
        self.logged: list[Exception] = []

    def loop_once(self) -> None:
        try:
            self.poll_sweeper_table()
        except Exception as error:  # noqa: BLE001 - the third fault: "Pokemon"
            self.logged.append(error)

    def poll_sweeper_table(self) -> None:
        rows = self._connection.execute(
            "SELECT producer, message_id, topic, body FROM poisonguard_outbox"
            " WHERE sent_at IS NULL ORDER BY row_id"
        ).fetchall()
        messages = [
            OutboxMessage(producer=p, message_id=m, topic=t, body=b)
            for p, m, t, b in rows
        ]
        for message in messages:
            self._send(message)
        self.mark_sent(messages)

    def mark_sent(self, messages: list[OutboxMessage]) -> None:
        with self._connection.transaction():  # the second fault: one for all
            for message in messages:
                cursor = self._connection.execute(
                    "UPDATE poisonguard_outbox SET sent_at = now()"
                    " WHERE message_id = %s",
                    [message.message_id],  # the first fault: an id of two rows
                )
                if cursor.rowcount != 1:
                    raise NotUnique(message.message_id)


def corrupt(outbox: OutboxTables) -> None:
    """Put ten messages, of which two have one id: the rows of the incident."""
    outbox.make()
    outbox.drop_unique_index()
    outbox.put_many(8)
    outbox.put("twice", b"one")
    outbox.put("twice", b"other")


def test_its_flood_is_shown_and_ours_does_not_start(outbox: OutboxTables) -> None:
    corrupt(outbox)
    flood: list[OutboxMessage] = []
    article = ArticleSweeper(outbox.connection, flood.append)
    for _ in range(TURNS):
        article.loop_once()

    assert len(flood) == 10 * TURNS
    assert {type(error) for error in article.logged} == {NotUnique}
    assert outbox.waiting == 10

    corrupt(outbox)
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
        for _ in range(TURNS):
            sweeper.work_once()
        errors = sweeper.errors.errors

    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 9)}
    assert len(outbox.reasons()) == 2
    assert [(error.kind, error.count) for error in errors] == [("row quarantined", 2)]


def test_a_mark_that_fails_for_all_rows_sends_no_row_again(
    outbox: OutboxTables,
) -> None:
    corrupt(outbox)
    outbox.execute("ALTER TABLE poisonguard_outbox_sent RENAME TO elsewhere")
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher, claim_seconds=0.6) as sweeper:
        for _ in range(TURNS // 10):
            sweeper.work_once()
        # Without the table of ids it does not even know what it may send.
        assert publisher.sent_messages == []
        outbox.execute("ALTER TABLE elsewhere RENAME TO poisonguard_outbox_sent")
        outbox.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE insufficient_privilege; END $$"
        )
        outbox.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON poisonguard_outbox_sent"
            " FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        for _ in range(TURNS // 10):
            sweeper.work_once()
        assert publisher.counts == {f"m-{number}": 1 for number in range(1, 9)}
        assert outbox.count("sent_at IS NOT NULL") == 0
        assert sweeper.health().breaker_opened_at is not None
        assert "failed to mark" in sweeper.health().breaker_reason
        outbox.execute("DROP TRIGGER fail ON poisonguard_outbox_sent")
        work_until(sweeper, lambda: not outbox.waiting)

    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 9)}


def test_rows_that_a_trigger_keeps_from_their_marks_are_sent_once(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(40)
    outbox.execute(
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.sent_at IS NOT NULL THEN"
        "   IF NEW.message_id = 'm-3' THEN RAISE 'no mark for you'; END IF;"
        "   IF NEW.message_id = 'm-20' THEN RETURN NULL; END IF;"
        "   IF NEW.message_id = 'm-33' THEN NEW.sent_at := NULL; END IF;"
        " END IF; RETURN NEW; END $$"
    )
    outbox.execute(
        "CREATE TRIGGER meddle BEFORE UPDATE ON poisonguard_outbox"
        " FOR EACH ROW EXECUTE FUNCTION meddle()"
    )
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher) as sweeper:
        for _ in range(TURNS // 10):
            sweeper.work_once()
        outbox.execute(CLAIMS_END)
        # A later look finds their ids among those that were sent.
        work_until(sweeper, lambda: outbox.count("duplicate_of = row_id") == 2)
        kinds = {error.kind for error in sweeper.errors.errors}

    assert publisher.counts == {f"m-{number}": 1 for number in range(1, 41)}
    assert kinds == {"row left out", "rows changed while they were sent"}
    assert outbox.count("sent_at IS NOT NULL") == 37


def test_rows_that_cannot_be_claimed_are_left_out_and_reported(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(40)
    raising, ignored = outbox.row_ids(["m-7", "m-21"])
    outbox.execute(
        "CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.message_id = 'm-7' THEN RAISE 'not mine to change'; END IF;"
        " IF NEW.message_id = 'm-21' THEN RETURN NULL; END IF;"
        " RETURN NEW; END $$"
    )
    outbox.execute(
        "CREATE TRIGGER meddle BEFORE UPDATE ON poisonguard_outbox"
        " FOR EACH ROW EXECUTE FUNCTION meddle()"
    )
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    with sweeping(outbox.dsn, publisher, reporter=reporter) as sweeper:
        work_until(sweeper, lambda: len(reporter.rows) == 2)
        for _ in range(10):
            sweeper.work_once()
        health = sweeper.health()

    good = {f"m-{n}": 1 for n in range(1, 41) if n not in {7, 21}}
    assert publisher.counts == good
    assert sorted(health.left_out) == [raising, ignored]
    reports = reporter.by_row()
    assert "not mine to change" in reports[raising].reason
    assert reports[raising].body == b"body 7"
    assert "keeps the row from being changed" in reports[ignored].reason
    assert reports[ignored].writer.application == "shop"
    assert len(reporter.rows) == 2


def test_many_rows_that_cannot_be_claimed_block_no_later_row(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(20, topic="locked")
    outbox.put_many(5, first=21)
    outbox.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE 'not mine to change'; END $$"
    )
    outbox.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON poisonguard_outbox FOR EACH ROW"
        " WHEN (OLD.topic = 'locked') EXECUTE FUNCTION refuse()"
    )
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: outbox.waiting == 20)
        left_out = sweeper.health().left_out

    assert publisher.counts == {f"m-{number}": 1 for number in range(21, 26)}
    assert len(left_out) == 20


def test_whole_windows_that_cannot_be_claimed_hold_up_no_row_behind_them(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(1_200)
    outbox.put("k-1", key="k")
    outbox.put_many(30, first=1_201)
    outbox.put("k-2", key="k")
    outbox.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.row_id <= 1300 THEN RAISE 'not this tenant'; END IF; RETURN NEW;"
        " END $$"
    )
    outbox.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON poisonguard_outbox"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    publisher, reporter = RecordingPublisher(), RecordingReporter()
    with sweeping(outbox.dsn, publisher, reporter=reporter, window_rows=100) as sweeper:
        work_until(sweeper, lambda: outbox.waiting == 1_200)

        assert len(sweeper.health().left_out) == 1_200
        kinds = {error.kind for error in sweeper.errors.errors}
    ids = [message.message_id for message in publisher.sent_messages]
    assert ids == ["k-1", *(f"m-{n}" for n in range(1_201, 1_231)), "k-2"]
    assert "row left out" in kinds
