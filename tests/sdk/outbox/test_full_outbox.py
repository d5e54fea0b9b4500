"""A full outbox refuses messages, by figures that are at most a second old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from poisonguard import Misconfigured, OutboxFull
from poisonguard.outbox import Outbox, OutboxLimits, TopicLimits, backlog_size
from poisonguard.outbox.postgres_schema import schema
from tests.manual_clock import ManualClock
from tests.sdk.outbox.executed_statements import ExecutedStatements

FIGURES = """
INSERT INTO poisonguard_outbox_figures
VALUES (%s, %s, %s, clock_timestamp() - %s::interval, clock_timestamp() - %s::interval)
"""
# Postgres's clock stands still for a session: ages are what a test makes them.
STOP_CLOCK = """
CREATE SCHEMA IF NOT EXISTS stopped;
CREATE OR REPLACE FUNCTION stopped.clock_timestamp() RETURNS timestamptz
LANGUAGE sql AS $$ SELECT timestamptz '2026-11-26 12:00Z' $$;
SET search_path = stopped, pg_catalog, public
"""
ROWS = OutboxLimits(rows=3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(backlog_size, "clock", clock)
    return clock


@pytest.fixture
def connection(outbox_dsn: str, clock: ManualClock) -> Iterator[psycopg.Connection]:
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        connection.execute(STOP_CLOCK)
        yield connection


@pytest.fixture
def outbox(connection: psycopg.Connection) -> Callable[[OutboxLimits], Outbox]:
    return lambda limits: Outbox(connection, producer="shop", limits=limits)


def put_until_full(
    outbox: Outbox, topic: str, clock: ManualClock, most: int = 9
) -> int:
    """Put messages a second apart; return how many were taken."""
    for number in range(most):
        clock.now += 1
        try:
            outbox.put(topic, b"12345")
        except OutboxFull:
            return number
    return most


def test_rows_that_wait_are_limited(
    outbox: Callable[[OutboxLimits], Outbox], clock: ManualClock
) -> None:
    assert put_until_full(outbox(ROWS), "orders", clock) == 3

    with pytest.raises(OutboxFull) as full:
        outbox(ROWS).put("bills", b"one")

    assert str(full.value).startswith(
        "The outbox has 3 rows waiting, and its limit is 3: see whether its sweeper"
    )
    assert (full.value.topic, full.value.measure) == (None, "rows")
    assert (full.value.figure, full.value.limit) == (3, 3)


def test_bytes_that_wait_are_limited(
    outbox: Callable[[OutboxLimits], Outbox], clock: ManualClock
) -> None:
    limits = OutboxLimits(topics={"orders": TopicLimits(bytes=14)})

    assert put_until_full(outbox(limits), "orders", clock) == 3
    with pytest.raises(
        OutboxFull, match="Topic 'orders' of the outbox has 15 bytes waiting, .* is 14"
    ):
        outbox(limits).put("orders", b"one")
    outbox(limits).put("bills", b"one")


def test_the_age_of_the_oldest_row_is_limited(
    connection: psycopg.Connection,
    outbox: Callable[[OutboxLimits], Outbox],
    clock: ManualClock,
) -> None:
    limits = OutboxLimits(each_topic=TopicLimits(age=timedelta(minutes=5)))
    assert put_until_full(outbox(limits), "orders", clock, most=2) == 2
    connection.execute(
        "UPDATE poisonguard_outbox"
        " SET created_at = clock_timestamp() - interval '6 minutes'"
    )
    clock.now += 1

    with pytest.raises(
        OutboxFull, match="a row waiting for 360 s, .* is 300 s"
    ) as full:
        outbox(limits).put("orders", b"one")

    assert (full.value.topic, full.value.measure) == ("orders", "age")
    outbox(limits).put("bills", b"one")


@pytest.mark.parametrize("is_measured", [True, False], ids=["measured", "counted"])
def test_a_row_of_no_age_ends_no_transaction(
    connection: psycopg.Connection,
    outbox: Callable[[OutboxLimits], Outbox],
    is_measured: bool,
) -> None:
    limits = OutboxLimits(age=timedelta(minutes=5))
    outbox(OutboxLimits(rows=None, bytes=None)).put("orders", b"one")
    connection.execute("UPDATE poisonguard_outbox SET created_at = '-infinity'")
    if is_measured:
        connection.execute(FIGURES, ["orders", 1, 3, "0", "0"])
        connection.execute(
            "UPDATE poisonguard_outbox_figures SET oldest_at = '-infinity'"
        )

    # Postgres 16 cannot subtract such a time at all; later ones find it too long ago.
    outbox(limits).put("orders", b"two")


@pytest.mark.parametrize(
    "mark", ["sent_at = now()", "duplicate_of = 7", "quarantined_at = now()"]
)
def test_what_no_longer_waits_makes_room(
    connection: psycopg.Connection,
    outbox: Callable[[OutboxLimits], Outbox],
    clock: ManualClock,
    mark: str,
) -> None:
    assert put_until_full(outbox(ROWS), "orders", clock) == 3

    connection.execute(f"UPDATE poisonguard_outbox SET {mark}")

    assert put_until_full(outbox(ROWS), "orders", clock) == 3


def test_fresh_figures_of_the_sweeper_decide(
    connection: psycopg.Connection,
    outbox: Callable[[OutboxLimits], Outbox],
    clock: ManualClock,
) -> None:
    connection.execute(FIGURES, ["bills", 2, 10, "1s", "0s"])
    connection.execute(FIGURES, ["orders", 1, 10, "1s", "300ms"])
    statements = ExecutedStatements(connection)

    with pytest.raises(OutboxFull, match="has 3 rows waiting"):
        outbox(ROWS).put("orders", b"one")

    (text,) = statements.texts
    assert "poisonguard_outbox_figures" in text
    outbox(OutboxLimits(rows=4)).put("orders", b"one")


@pytest.mark.parametrize("age", ["1.1s", "1 hour", "-1 hour"])
def test_figures_that_are_too_old_or_of_the_future_are_replaced_by_a_count(
    connection: psycopg.Connection,
    outbox: Callable[[OutboxLimits], Outbox],
    clock: ManualClock,
    age: str,
) -> None:
    connection.execute(FIGURES, ["orders", 1_000, 10, "1s", age])

    assert put_until_full(outbox(ROWS), "orders", clock) == 3


def test_a_count_that_was_cut_short_does_not_hide_former_figures(
    connection: psycopg.Connection,
    outbox: Callable[[OutboxLimits], Outbox],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_size, "COUNTED_ROWS", 2)
    connection.execute(FIGURES, ["orders", 1_000, 10, "1s", "1 hour"])
    outbox(OutboxLimits(rows=900)).put("orders", b"one")
    clock.now += 1
    outbox(OutboxLimits(rows=900)).put("bills", b"one")
    clock.now += 1

    with pytest.raises(OutboxFull, match="has 1,001 rows waiting"):
        outbox(OutboxLimits(rows=900)).put("orders", b"one")


def test_a_process_reads_figures_once_a_second(
    outbox_dsn: str, connection: psycopg.Connection, clock: ManualClock
) -> None:
    statements, numbers = ExecutedStatements(connection), []

    for seconds in (0.0, 0.4, 0.59, 0.02, 0.9, 0.2):
        clock.now += seconds
        statements.texts.clear()
        Outbox(connection, producer="shop").put("orders", b"one")
        numbers.append(len(statements.texts))
        with psycopg.connect(outbox_dsn) as other:  # shares what was read
            others = ExecutedStatements(other)
            Outbox(other, producer="bank").put("orders", b"one")
            assert len(others.texts) == 1

    assert numbers == [3, 1, 1, 3, 1, 3]


def test_figures_of_a_sweeper_are_used_until_they_are_a_second_old(
    connection: psycopg.Connection, clock: ManualClock
) -> None:
    connection.execute(FIGURES, ["orders", 1, 10, "1s", "700ms"])
    statements, numbers = ExecutedStatements(connection), []

    for seconds in (0.0, 0.1, 0.25):
        clock.now += seconds
        statements.texts.clear()
        Outbox(connection, producer="shop").put("orders", b"one")
        numbers.append(len(statements.texts))

    assert numbers[:2] == [2, 1]
    assert numbers[2] > 1


def test_no_limit_reads_no_figures(connection: psycopg.Connection) -> None:
    statements = ExecutedStatements(connection)
    limits = OutboxLimits(rows=None, bytes=None)

    Outbox(connection, producer="shop", limits=limits).put("orders", b"one")

    assert len(statements.texts) == 1


def test_outboxes_of_two_schemas_have_figures_of_their_own(
    connection: psycopg.Connection, clock: ManualClock
) -> None:
    outbox = Outbox(connection, producer="shop", limits=ROWS)
    assert put_until_full(outbox, "orders", clock) == 3
    with connection.transaction(force_rollback=True):
        connection.execute("CREATE SCHEMA second")
        connection.execute("SET LOCAL search_path TO second")
        connection.execute(schema())
        Outbox(connection, producer="shop", limits=ROWS, schema="second").put(
            "orders", b"one"
        )


def test_threads_share_figures_and_none_waits_for_another(
    outbox_dsn: str, clock: ManualClock
) -> None:
    errors, puts = list[BaseException](), list[str]()

    def work(producer: str) -> None:
        try:
            with psycopg.connect(outbox_dsn, autocommit=True) as connection:
                outbox = Outbox(connection, producer=producer)
                for number in range(50):
                    if number % 10 == 0:
                        clock.now += 1
                    puts.append(outbox.put("orders", b"one"))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=[f"shop {number}"]) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert errors == []
    assert len(set(puts)) == 400


def test_a_thread_that_hangs_in_a_read_holds_up_none(
    outbox_dsn: str, connection: psycopg.Connection
) -> None:
    with psycopg.connect(outbox_dsn) as locker:
        locker.execute("LOCK TABLE poisonguard_outbox_figures")
        with psycopg.connect(outbox_dsn) as stuck:
            thread = threading.Thread(
                target=lambda: Outbox(stuck, producer="shop").put("orders", b"one")
            )
            thread.start()
            try:
                # It would wait for ever for a thread that waits for its transaction.
                Outbox(locker, producer="bank").put("orders", b"two")
            finally:
                locker.rollback()
                thread.join(60)
            stuck.rollback()


@pytest.mark.parametrize("value", [0, -1, 1e9, float("nan"), True, "7", 2.5], ids=repr)
@pytest.mark.parametrize("kind", [OutboxLimits, TopicLimits])
@pytest.mark.parametrize("member", ["rows", "bytes", "max_body"])
def test_a_limit_is_a_whole_number_above_zero(
    kind: type[Any], member: str, value: Any
) -> None:
    with pytest.raises(
        Misconfigured, match=f"^{kind.__name__}: {member} is .*: give a whole number"
    ):
        kind(**{member: value})


@pytest.mark.parametrize("value", [timedelta(), -timedelta(1), 60, float("nan")])
@pytest.mark.parametrize("kind", [OutboxLimits, TopicLimits])
def test_an_age_is_a_time_above_zero(kind: type[Any], value: Any) -> None:
    with pytest.raises(Misconfigured, match=f"^{kind.__name__}: age is .* timedelta"):
        kind(age=value)


@pytest.mark.parametrize(
    "members",
    [
        {"topics": [1]},
        {"topics": {"orders": 7}},
        {"each_topic": None},
        {"max_body": None},
    ],
    ids=str,
)
def test_limits_of_topics_are_limits(members: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="^OutboxLimits: "):
        OutboxLimits(**members)


# Waiting for room


def test_room_that_is_there_is_found_at_once(outbox_dsn: str) -> None:
    with psycopg.connect(outbox_dsn) as connection:
        outbox = Outbox(connection, producer="shop", limits=ROWS)

        assert outbox.wait_for_room("orders", 0)
        assert connection.info.transaction_status == 0  # leaves no transaction open


def test_waiting_ends_when_a_row_is_sent(outbox_dsn: str) -> None:
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        limits = OutboxLimits(rows=1)
        outbox = Outbox(connection, producer="shop", limits=limits)
        outbox.put("orders", b"one")
        backlog_size._cache.clear()
        assert not outbox.wait_for_room("orders", 0)
        answers = list[bool]()
        thread = threading.Thread(
            target=lambda: answers.append(outbox.wait_for_room("orders", 60))
        )

        thread.start()
        with psycopg.connect(outbox_dsn) as sweeper:
            sweeper.execute("UPDATE poisonguard_outbox SET sent_at = now()")
        thread.join(60)

        assert answers == [True]


def test_waiting_ends_with_its_time(outbox_dsn: str) -> None:
    with psycopg.connect(outbox_dsn, autocommit=True) as connection:
        outbox = Outbox(connection, producer="shop", limits=OutboxLimits(rows=1))
        outbox.put("orders", b"one")
        backlog_size._cache.clear()
        began = time.monotonic()

        assert not outbox.wait_for_room("orders", 0.2)
        assert 0.2 <= time.monotonic() - began < 10


def test_waiting_inside_a_transaction_is_refused(
    connection: psycopg.Connection, outbox: Callable[[OutboxLimits], Outbox]
) -> None:
    with (
        connection.transaction(),
        pytest.raises(Misconfigured, match="wait_for_room inside a transaction: call"),
    ):
        outbox(ROWS).wait_for_room("orders", 1)


@pytest.mark.parametrize(
    "timeout", [-1, float("nan"), float("inf"), None, "1", 1e300], ids=repr
)
def test_a_timeout_is_a_time(
    outbox: Callable[[OutboxLimits], Outbox], timeout: Any
) -> None:
    with pytest.raises(Misconfigured, match="timeout is .*: give seconds, 0 or more"):
        outbox(ROWS).wait_for_room("orders", timeout)
