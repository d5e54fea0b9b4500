"""Order by key, bounded windows, back-off, and brokers that go away."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from poisonguard.errors import Away, Misconfigured
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind, SendOutcome
from poisonguard.outbox.sweeping import row_quarantine_and_report
from poisonguard.outbox.sweeping import sweeper as sweeper_module
from poisonguard.outbox.sweeping.connection import OutboxConnection, connecting_to
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow
from poisonguard.outbox.sweeping.settings import SweeperSettings
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables
from tests.sdk.outbox_sweeping.sweeper_with_recording_publisher import (
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


@pytest.mark.parametrize("key", ["", "k"], ids=["without a key", "with a key"])
def test_rows_do_not_wait_behind_one_that_is_due_later(
    outbox: OutboxTables, key: str
) -> None:
    late = outbox.put("late", key=key)
    outbox.execute("UPDATE poisonguard_outbox SET due_at = now() + interval '29 days'")
    for number in range(1, 4):
        outbox.put(f"m-{number}", key=key)
    publisher = RecordingPublisher()

    with sweeping(
        outbox.dsn, publisher, row_pause=60.0, longest_row_pause=60.0
    ) as sweeper:
        sweeper.work_once()
        assert publisher.counts == {"m-1": 1, "m-2": 1, "m-3": 1}
        outbox.execute("UPDATE poisonguard_outbox SET due_at = now()")
        publisher.answer = lambda message: UNSENT
        sweeper.work_once()
        assert outbox.column("attempts", late) == 1
        # It was tried: now it has its place.
        outbox.put("m-4", key=key)
        publisher.answer = lambda message: SENT
        sweeper.work_once()

    assert publisher.counts["m-4"] == 0


class OrderlyBroker:
    """Refuses to be given a message before all earlier ones of its topic and key.

    `answers` are of the first tries of a message; the last tries are successful.
    """

    def __init__(self, outbox: OutboxTables) -> None:
        self._outbox = outbox
        self.calls: list[list[str]] = []
        self.answers: dict[str, list[SendOutcome | Exception]] = {}
        self.done: list[str] = []

    def __call__(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        self.calls.append([message.message_id for message in batch])
        for place, message in enumerate(batch):
            if message.key:
                earlier = self._earlier(message)
                assert earlier <= set(self.done), (message.message_id, earlier)
                assert (message.topic, message.key) not in {
                    (other.topic, other.key) for other in batch[:place]
                }
        outcomes = []
        for message in batch:
            answers = self.answers.get(message.message_id, [])
            answer = answers.pop(0) if answers else SENT
            if isinstance(answer, Exception):
                raise answer
            if answer.kind in {SendKind.SENT, SendKind.REFUSED}:
                self.done.append(message.message_id)
            outcomes.append(answer)
        return outcomes

    def _earlier(self, message: OutboxMessage) -> set[str]:
        rows = self._outbox.execute(
            "SELECT message_id FROM poisonguard_outbox WHERE topic = %s AND key = %s"
            " AND row_id < (SELECT row_id FROM poisonguard_outbox"
            "  WHERE message_id = %s)",
            [message.topic, message.key, message.message_id],
        )
        return {message_id for (message_id,) in rows}


REFUSED = SendOutcome(kind=SendKind.REFUSED, detail="too large")


@pytest.mark.parametrize(
    "answer",
    [UNSENT, UNKNOWN, Away("gone"), ZeroDivisionError("a fault of the client")],
    ids=["unsent", "unknown", "away", "client fails"],
)
def test_rows_of_a_key_go_one_after_another_also_in_one_window(
    outbox: OutboxTables, answer: SendOutcome | Exception
) -> None:
    for number in range(1, 5):
        outbox.put(f"k-{number}", key="k")
        outbox.put(f"l-{number}", key="l")
        outbox.put(f"bill-{number}", topic="invoices", key="k")
    # It is one more try of each row of its call, whatever its key.
    is_of_call = isinstance(answer, Exception)
    broker = OrderlyBroker(outbox)
    broker.answers = {"k-1": [answer, answer]}
    if not is_of_call:
        broker.answers["l-3"] = [answer]

    with sweeping(outbox.dsn, broker, row_pause=0.05) as sweeper:
        sweeper.work_once()
        first_calls = len(broker.calls)
        work_until(sweeper, lambda: not outbox.waiting)

    assert broker.calls[0] == ["k-1", "l-1", "bill-1"]
    assert first_calls == (1 if is_of_call else 4)
    for name in ("k", "l", "bill"):
        done = [each for each in broker.done if each.startswith(name)]
        assert list(dict.fromkeys(done)) == [f"{name}-{n}" for n in range(1, 5)]
    # What waited behind another was not tried.
    assert outbox.count("attempts <> 1 AND message_id = 'k-2'") == 0
    assert is_of_call or outbox.count("attempts <> 1 AND message_id = 'l-4'") == 0


def test_silence_of_the_broker_ends_the_rounds_of_a_window(
    outbox: OutboxTables,
) -> None:
    for number in range(1, 4):
        outbox.put(f"k-{number}", key="k")
    broker = OrderlyBroker(outbox)
    broker.answers = {"k-2": [UNKNOWN]}

    with sweeping(outbox.dsn, broker) as sweeper:
        sweeper.work_once()
        assert broker.calls == [["k-1"], ["k-2"]]
        (error,) = [e for e in sweeper.errors.errors if e.kind == "Unanswered"]
        assert error.last_text == "The broker took none of what it got last: closed"
        work_until(sweeper, lambda: not outbox.waiting)

    assert broker.done == ["k-1", "k-2", "k-3"]


def test_rows_behind_a_refused_one_of_their_key_are_sent(outbox: OutboxTables) -> None:
    rows = [outbox.put(f"k-{number}", key="k") for number in range(1, 4)]
    broker = OrderlyBroker(outbox)
    broker.answers = {"k-1": [REFUSED]}

    with sweeping(outbox.dsn, broker) as sweeper:
        sweeper.work_once()

    assert broker.calls == [["k-1"], ["k-2"], ["k-3"]]
    assert outbox.reasons() == {rows[0]: "the broker refuses it: too large"}
    assert outbox.waiting == 0


def test_a_window_whose_keys_differ_is_one_call(outbox: OutboxTables) -> None:
    outbox.put_many(40)
    outbox.execute(
        "UPDATE poisonguard_outbox SET key = CASE WHEN row_id % 2 = 0 THEN message_id"
        " ELSE '' END"
    )
    broker = OrderlyBroker(outbox)

    with sweeping(outbox.dsn, broker) as sweeper:
        sweeper.work_once()

    assert [len(call) for call in broker.calls] == [40]


def test_rows_without_a_key_go_together_and_an_unsent_one_goes_later(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(4)
    broker = OrderlyBroker(outbox)
    broker.answers = {"m-2": [UNSENT]}

    with sweeping(outbox.dsn, broker) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    assert broker.calls == [["m-1", "m-2", "m-3", "m-4"], ["m-2"]]


def test_any_answers_leave_the_order_of_keys_as_it_is(outbox: OutboxTables) -> None:
    ids = [f"m-{number}" for number in range(1, 81)]
    for message_id in ids:
        outbox.put(message_id, topic=random.choice("ab"), key=random.choice("xyz"))
    broker = OrderlyBroker(outbox)
    broker.answers = {
        message_id: random.choices([UNSENT, UNKNOWN, REFUSED, Away("gone")], k=2)
        for message_id in random.sample(ids, 20)
    }

    with sweeping(outbox.dsn, broker, window_rows=17) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    assert set(broker.done) == set(ids)
    kinds = {error.kind for error in sweeper.errors.errors}
    assert "AssertionError" not in kinds, sweeper.errors.errors


def test_a_key_that_takes_long_leaves_its_rest_to_the_next_window(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper_module, "ROUNDS_SECONDS", 0.0)
    for number in range(1, 4):
        outbox.put(f"k-{number}", key="k")
    broker = OrderlyBroker(outbox)

    with sweeping(outbox.dsn, broker) as sweeper:
        sweeper.work_once()
        assert broker.calls == [["k-1"]]
        assert outbox.count("claim_token IS NOT NULL") == 0
        work_until(sweeper, lambda: not outbox.waiting)

    assert broker.done == ["k-1", "k-2", "k-3"]
    assert outbox.count("attempts <> 1") == 0


def test_a_row_that_another_transaction_locks_is_passed_over(
    outbox: OutboxTables,
) -> None:
    outbox.put("k-1", key="k")
    outbox.put("k-2", key="k")
    publisher = RecordingPublisher()

    with sweeping(outbox.dsn, publisher) as sweeper:
        with outbox.connection.transaction():
            outbox.execute(
                "SELECT FROM poisonguard_outbox WHERE message_id = 'k-1' FOR UPDATE"
            )
            sweeper.work_once()
        work_until(sweeper, lambda: not outbox.waiting)

    assert [message.message_id for message in publisher.sent_messages] == ["k-2", "k-1"]


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


def test_headers_are_measured_as_they_are_read_not_as_they_are_stored(
    outbox: OutboxTables,
) -> None:
    put = (
        "INSERT INTO poisonguard_outbox (producer, message_id, topic, body, headers)"
        " SELECT 'shop', %s || '-' || n, 'orders', 'bad',"
        " ARRAY['a', convert_to(%s || repeat('x', %s), 'UTF8')]"
        " FROM generate_series(1, %s) AS n"
    )
    outbox.execute(put, ["bomb", "", 20_000_000, 2])
    outbox.execute(put, ["dense", "", 900_000, 30])
    outbox.execute(put, ["loose", random.randbytes(16_000).hex(), 900_000, 30])
    ((stored,),) = outbox.execute(
        "SELECT sum(pg_column_size(headers)) FROM poisonguard_outbox"
    )
    assert stored < 3 * 2**20
    publisher = RecordingPublisher()
    publisher.answer = lambda message: SendOutcome(kind=SendKind.REFUSED)

    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)

    assert [*outbox.reasons().values()][:2] == [
        "headers take 20,000,041 bytes: too many"
    ] * 2
    sizes = [header_bytes(window) for window in publisher.windows]
    assert sum(sizes) > 60 * 900_000
    assert max(sizes) <= 16 * 2**20

    connection = OutboxConnection(connecting_to(outbox.dsn), SweeperSettings())
    passed_by: list[int] = []
    while rows := row_quarantine_and_report.unreported_rows(connection, passed_by):
        assert header_bytes(rows) <= 16 * 2**20
        passed_by += [row.row_id for row in rows]
    connection.close()
    assert len(passed_by) == 62


def header_bytes(rows: Sequence[OutboxMessage | QuarantinedRow]) -> int:
    return sum(len(value) for row in rows for _, value in row.headers)


def test_a_row_alone_waits_too_while_its_topic_is_slowed(outbox: OutboxTables) -> None:
    outbox.put("alone")
    publisher = RecordingPublisher()
    publisher.answer = lambda message: UNKNOWN
    slowed_topics: list[str] = []

    with sweeping(
        outbox.dsn, publisher, slowed_topics=lambda: slowed_topics
    ) as sweeper:
        sweeper.work_once()
        slowed_topics.append("orders")
        outbox.execute("UPDATE poisonguard_outbox SET due_at = now()")
        time.sleep(0.1)  # more than the longest pause of a row
        for _ in range(4):
            sweeper.work_once()
        assert len(publisher.windows) == 1
        publisher.answer = lambda message: SENT
        slowed_topics.clear()
        work_until(sweeper, lambda: not outbox.waiting)


def test_a_window_is_not_sent_after_its_machine_slept(
    outbox: OutboxTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox.put_many(3)
    publisher = RecordingPublisher()
    read_clock, slept = time.clock_gettime, [0.0]

    def read_moved_clock(clock: int) -> float:
        moved = slept[0] if clock == time.CLOCK_BOOTTIME else 0.0
        return read_clock(clock) + moved

    def sleep_an_hour() -> list[str]:
        """Stop the machine within the claim: only one clock goes on."""
        slept[0] += 3_600
        return []

    monkeypatch.setattr(time, "clock_gettime", read_moved_clock)
    with sweeping(outbox.dsn, publisher, slowed_topics=sleep_an_hour) as sweeper:
        sweeper.work_once()
        assert publisher.windows == []
        (error,) = sweeper.errors.errors
        assert error.kind == "Fenced"


def test_calls_to_a_slow_broker_get_small_enough_for_a_claim(
    outbox: OutboxTables,
) -> None:
    outbox.put_many(1_500)
    publisher = RecordingPublisher()
    publisher.before = lambda batch: time.sleep(len(batch) * 0.005)

    with sweeping(
        outbox.dsn, publisher, claim_seconds=6.0, window_rows=2_000
    ) as sweeper:
        work_until(sweeper, lambda: outbox.waiting <= 500)
        slow_calls = len(publisher.windows)
        publisher.before = lambda batch: None
        outbox.put_many(2_000, first=1_501)
        work_until(sweeper, lambda: not outbox.waiting)

    sizes = [len(window) for window in publisher.windows]
    # The first took 2.5 s or more, and 1.5 s is a quarter of the claim.
    assert sizes[0] == 500
    assert 0 < max(sizes[1:slow_calls]) <= 300
    assert max(sizes[slow_calls:]) > 500
    assert publisher.counts.total() == 3_500


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
        assert sweeper.health().backlog.rows == 30
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


def test_figures_are_read_whatever_style_of_dates_the_database_has(
    outbox: OutboxTables,
) -> None:
    outbox.put("later", topic="later")
    outbox.execute("UPDATE poisonguard_outbox SET due_at = now() + interval '1 day'")
    dsn = f"{outbox.dsn}?options=-cdatestyle%3DGerman"
    with sweeping(dsn, RecordingPublisher()) as sweeper:
        sweeper.work_once()
        assert sweeper.errors.errors == []
        oldest_at = sweeper.health().backlog.oldest_at
    assert oldest_at == outbox.column("created_at", 101)


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


def test_pruning_leaves_rows_of_other_partitions_alone(outbox: OutboxTables) -> None:
    outbox.drop_unique_index()
    outbox.put_many(10)
    outbox.put_many(1)
    publisher = RecordingPublisher()
    with sweeping(outbox.dsn, publisher) as sweeper:
        work_until(sweeper, lambda: not outbox.waiting)
    outbox.execute(
        "UPDATE poisonguard_outbox SET created_at = created_at - interval '8 days',"
        " sent_at = sent_at - interval '8 days'"
    )
    # Its rows lie at the same places as those of the table itself.
    outbox.execute("CREATE TABLE part () INHERITS (poisonguard_outbox)")
    outbox.execute(
        "INSERT INTO part (row_id, producer, message_id, topic, body, due_at)"
        " SELECT 1000 + n, 'shop', 'p-' || n, 'later', '', now() + interval '1 day'"
        " FROM generate_series(1, 100) AS n"
    )
    with sweeping(outbox.dsn, publisher, prune_every=0.01) as sweeper:
        work_until(sweeper, lambda: not outbox.count("row_id < 1000"))

    assert outbox.waiting == 100
