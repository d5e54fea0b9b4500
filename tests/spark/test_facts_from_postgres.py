"""Facts from a real Postgres: exactly its rows, in one snapshot, each once."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from pyspark.sql import Row, SparkSession

from apps.capture import daily_partition_creation
from apps.poison.models import Failure, Poison, Redrive
from apps.triage.models import Item, Operation, SkippedItem
from spark import fact_sql_statements, postgres_reading_and_writing
from spark.fact_sql_statements import FactWindow
from spark.lake_schemas import LakeKind
from tests.failure_report_builders import capture, count_up, counter, failure, poisons
from tests.spark.pytest_adbc_jdbc_parametrization import Export

pytestmark = pytest.mark.spark

HOSTILE = "a/b c% '\"\\`$1 \u202e\u2028 \N{PILE OF POO} e\u0301 {} <b>"


def read(
    spark: SparkSession,
    kind: LakeKind,
    snapshot: str,
    day: date,
    *,
    blocks: int = 20_000,
) -> list[Row]:
    window = FactWindow(first=day, last=day, snapshot=snapshot)
    return postgres_reading_and_writing.read(
        spark, kind, window, blocks=blocks
    ).collect()


def redriven(poison: Poison, **changes: object) -> None:
    redrive_values: dict[str, object] = {
        "epoch": 1,
        "n": 1,
        "claimed_at": poison.captured_at,
    }
    Redrive.objects.create(
        **{
            "id": uuid.uuid4(),
            "poison": poison,
            "topic": poison.topic,
            **redrive_values,
            **changes,
        }
    )


def dropped(poison: Poison, *, skipped: Poison, finished_at: datetime) -> None:
    """Let an operation have dropped one message, and skipped another."""
    operation = Operation.objects.create(
        verb="drop",
        state="done",
        actor="user:anna",
        source="api",
        topics=["*"],
        reason="seen",
        taken=True,
        total=2,
        judged=2,
        created_at=finished_at,
        expires_at=finished_at,
        confirmed_at=finished_at,
        finished_at=finished_at,
    )
    Item.objects.create(operation=operation, number=0, poison=poison)
    Item.objects.create(operation=operation, number=1, poison=skipped)
    SkippedItem.objects.create(operation=operation, number=1, reason="not open")


def test_reads_a_failure_as_it_was_captured(
    spark: SparkSession, door: str, export: Export, now: datetime
) -> None:
    group = "g" * 250 + "\N{PILE OF POO}"
    capture(now, failure(now, topic=HOSTILE, consumer_group=group, attempts=3))

    (row,) = read(spark, LakeKind.FAILURES, export(), now.date())

    poison = Poison.objects.get()
    assert row.asDict() == {
        "day": now.date(),
        "at": now.replace(tzinfo=None),
        "topic": HOSTILE,
        "consumer_group": group,
        "problem": poison.problem_id,
        "poison": poison.pk,
        "cause": "exhausted",
        "is_first": True,
        "attempts": 3,
        "times": 1,
    }


def test_reads_a_counter_as_it_was_captured(
    spark: SparkSession, door: str, export: Export, now: datetime
) -> None:
    minute = now - timedelta(minutes=7)
    first_counter = counter(minute=minute.isoformat(), topic=HOSTILE)
    count_up(
        now, first_counter, counter(minute=minute.isoformat(), duration_ms_hist={})
    )

    rows = read(spark, LakeKind.COUNTERS, export(), now.date())

    row, plain = sorted(rows, key=lambda row: row.topic != HOSTILE)
    assert plain.duration_ms_hist == {}
    assert row.asDict() == {
        "day": now.date(),
        "at": minute.replace(tzinfo=None),
        "topic": HOSTILE,
        "consumer_group": "billing",
        "client_name": "billing-1",
        "source": "sdk",
        "handled": 10,
        "failed": 2,
        "skipped": 1,
        "retried": 3,
        "duration_ms_hist": {"3": 7, "5": 5},
    }


def test_reads_each_decision_on_its_own_day(
    spark: SparkSession, door: str, export: Export, now: datetime
) -> None:
    first, second, third = poisons(now, 3)
    yesterday = now - timedelta(days=1)
    redriven(first, outcome="confirmed", sent_at=now, confirmed_at=now, answered_at=now)
    redriven(second, outcome="recurred", sent_at=yesterday, answered_at=now)
    dropped(third, skipped=first, finished_at=now)

    today = read(spark, LakeKind.DECISIONS, export(), now.date())
    before = read(spark, LakeKind.DECISIONS, export(), yesterday.date())

    decisions = ["confirmed", "dropped", "recurred", "redriven"]
    assert sorted(row.what for row in today) == decisions
    assert [(row.what, row.problem) for row in before] == [
        ("redriven", second.problem_id)
    ]
    assert {(row.topic, row.consumer_group) for row in today} == {("orders", "billing")}


def test_days_end_at_utc_midnight_to_the_microsecond(
    spark: SparkSession, door: str, export: Export, now: datetime
) -> None:
    midnight = datetime(2026, 11, 20, tzinfo=UTC)
    tick = timedelta(microseconds=1)
    ends = [midnight - tick, midnight, midnight + timedelta(days=1) - tick]
    capture(now, *(failure(now, failed_at=end.isoformat()) for end in ends[:2]))
    tomorrow = now + timedelta(days=1)
    capture(tomorrow, failure(now, failed_at=ends[2].isoformat()))
    capture(tomorrow, failure(now, failed_at=(ends[2] + tick).isoformat()))

    rows = read(spark, LakeKind.FAILURES, export(), now.date())

    assert sorted(row["at"] for row in rows) == [
        end.replace(tzinfo=None) for end in ends[1:]
    ]


def test_reads_nothing_that_was_committed_after_the_export(
    spark: SparkSession, door: str, export: Export, now: datetime
) -> None:
    capture(now, failure(now, topic="before"))
    snapshot = export()
    capture(now, failure(now, topic="after"))

    rows = read(spark, LakeKind.FAILURES, snapshot, now.date())

    assert [row.topic for row in rows] == ["before"]


PARTITIONS_OF_DAYS = r"""
SELECT inhrelid::regclass::text FROM pg_inherits
WHERE inhrelid::regclass::text ~ '_\d{8}$'
"""


@pytest.fixture
def parted(transactional_db: None, now: datetime) -> Iterator[None]:
    """Create partitions of this day and of the next seven, as the product does."""
    # Lanes that other tests started made those of the day on which the tests run.
    drop_partitions_of_days()
    daily_partition_creation.make(today=now.date())
    yield
    drop_partitions_of_days()


def drop_partitions_of_days() -> None:
    """Leave the default partitions only."""
    with connection.cursor() as cursor:
        cursor.execute(PARTITIONS_OF_DAYS)
        names = [name for (name,) in cursor.fetchall()]
        if names:
            cursor.execute(f"DROP TABLE {', '.join(names)}")


@pytest.mark.parametrize("blocks", [1, fact_sql_statements.BLOCKS])
def test_reads_each_row_once_for_any_size_of_pieces(
    parted: None,
    spark: SparkSession,
    door: str,
    export: Export,
    now: datetime,
    blocks: int,
) -> None:
    for ahead in (0, 1, 40):  # the last goes to the default partition
        failures = [failure(now, failed_at=now.isoformat()) for _ in range(60)]
        capture(now + timedelta(days=ahead), *failures)

    rows = read(spark, LakeKind.FAILURES, export(), now.date(), blocks=blocks)

    captured = Failure.objects.filter(failed_at=now).values_list("poison_id", flat=True)
    assert len(rows) == 120
    assert sorted(row.poison for row in rows) == sorted(captured)


def test_reads_only_the_tables_that_can_hold_the_days(
    parted: None, now: datetime
) -> None:
    failures = [failure(now, failed_at=now.isoformat()) for _ in range(3)]
    for ahead in range(3):
        capture(now + timedelta(days=ahead), failures[ahead])
    capture(now - timedelta(days=1), failure(now - timedelta(days=1)))
    in_two_days = now.date() + timedelta(days=2)
    window = FactWindow(first=in_two_days, last=in_two_days, snapshot="0-0-0")

    statements = fact_sql_statements.statements(LakeKind.FAILURES, window, django_query)

    # A clock may be five minutes ahead: the partition before may have some rows.
    tables = re.findall(r"FROM (poison_failure_\w+)", "".join(statements))
    assert tables == [
        "poison_failure_20261121",
        "poison_failure_20261122",
        "poison_failure_default",
    ]


def django_query(statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[object, ...]] = cursor.fetchall()
        return rows


def test_cuts_a_table_at_its_blocks_and_leaves_its_end_open(now: datetime) -> None:
    window = FactWindow(first=now.date(), last=now.date(), snapshot="0-0-0")

    statements = fact_sql_statements.statements(
        LakeKind.COUNTERS, window, lambda _: [("a", 5), ("b", 2), ("c", 0)], blocks=2
    )

    places = [each.rpartition("$until' AND ")[2] for each in statements]
    ranges = [re.findall(r"fact\.ctid (\S+) '\((\d+),0\)'", each) for each in places]
    assert ranges == [
        [(">=", "0"), ("<", "2")],
        [(">=", "2"), ("<", "4")],
        [(">=", "4")],
        [(">=", "0")],
    ]


def test_reads_small_tables_together_up_to_an_eighth_of_a_large_one(
    now: datetime,
) -> None:
    window = FactWindow(first=now.date(), last=now.date(), snapshot="0-0-0")
    leaves: list[tuple[object, ...]] = [*zip("abcdef", (3, 2, 9, 1, 4, 1), strict=True)]

    statements = fact_sql_statements.statements(
        LakeKind.FAILURES, window, lambda _: leaves, blocks=40
    )

    read_by = ["".join(re.findall(r"FROM (\w) fact", each)) for each in statements]
    assert read_by == ["ab", "c", "de", "f"]


@pytest.mark.parametrize(
    ("first", "last", "snapshot"),
    [
        (date(2026, 11, 2), date(2026, 11, 1), "0-0-0"),
        (date(2026, 11, 1), date(2026, 11, 1), "0-0-0'; DROP TABLE poison_failure; --"),
    ],
)
def test_refuses_an_invalid_window(first: date, last: date, snapshot: str) -> None:
    with pytest.raises(ValueError, match=r"comes after|not the name of a snapshot"):
        FactWindow(first=first, last=last, snapshot=snapshot)
