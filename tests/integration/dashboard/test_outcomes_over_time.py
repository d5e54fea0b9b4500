"""The outcomes of an operation over time: what is counted, drawn and said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.poison.models import ItemWindow
from apps.poison.states import WindowState
from apps.triage.models import Operation
from apps.triage.outcomes_over_time import (
    MOST_BUCKETS,
    MOST_READ,
    WIDTHS,
    outcomes_over_time,
)
from tests.failure_report_builders import poisons
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_counts_that_time_out import slow
from tests.integration.dashboard.test_operations_list import decided, item

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def hour_of(now: datetime) -> datetime:
    """Return the start of an hour that is long over."""
    return now.replace(minute=0, second=0, microsecond=0) - 5 * HOUR


def answered(now: datetime, outcomes: Mapping[str, list[int]]) -> Operation:
    """Let an operation have sent messages at these minutes of an hour, by outcome."""
    pairs = [(name, minute) for name, each in outcomes.items() for minute in each]
    operation = decided(now, total=len(pairs))
    for poison, (outcome, minute) in zip(poisons(now, len(pairs)), pairs, strict=True):
        item(operation, poison, outcome, hour_of(now) + minute * MINUTE)
    return operation


def of_windows(
    now: datetime, *, number: int, every: timedelta, size: int = 500, **counts: int
) -> Operation:
    """Let a large operation have sent one window after the other."""
    operation = decided(now, total=number * size)
    ItemWindow.objects.bulk_create(
        ItemWindow(
            operation=operation.pk,
            first=at * size,
            items=size,
            state=WindowState.DONE,
            marked_at=hour_of(now) + at * every,
            **(counts or {"confirmed": size}),
        )
        for at in range(number)
    )
    return operation


def test_messages_are_counted_in_the_minute_of_their_sending(now: datetime) -> None:
    operation = answered(
        now, {"confirmed": [0, 0, 2], "recurred": [2], "refused": [1], "sent": [3]}
    )

    outcomes = outcomes_over_time(operation, now=now)

    assert outcomes is not None
    assert (outcomes.width, outcomes.is_by_window) == (MINUTE, False)
    begin = hour_of(now)
    assert [
        (bucket.begins_at, {k: v for k, v in bucket.counts.items() if v}, bucket.silent)
        for bucket in outcomes.buckets
    ] == [
        (begin, {"confirmed": 2}, 0),
        (begin + MINUTE, {"refused": 1}, 0),
        (begin + 2 * MINUTE, {"confirmed": 1, "recurred": 1}, 0),
        (begin + 3 * MINUTE, {"sent": 1}, 1),
    ]
    assert outcomes.ends_at == begin + 4 * MINUTE


def test_a_time_without_sends_is_an_empty_bucket(now: datetime) -> None:
    operation = answered(now, {"confirmed": [0, 3]})

    outcomes = outcomes_over_time(operation, now=now)

    assert outcomes is not None
    assert [bucket.total for bucket in outcomes.buckets] == [1, 0, 0, 1]


def test_a_message_without_an_answer_is_silent_only_after_its_time(
    now: datetime,
) -> None:
    operation = decided(now, total=2)
    early, late = poisons(now, 2)
    item(operation, early, "sent", now - timedelta(minutes=11))
    item(operation, late, "sent", now - timedelta(minutes=9))

    outcomes = outcomes_over_time(operation, now=now)

    assert outcomes is not None
    assert sum(bucket.counts["sent"] for bucket in outcomes.buckets) == 2
    assert sum(bucket.silent for bucket in outcomes.buckets) == 1


@pytest.mark.parametrize("span", [1, 57, 58, 59, 600, 60 * 24 * 40, 60 * 24 * 3000])
def test_a_long_operation_has_wider_buckets_and_never_too_many(
    now: datetime, span: int
) -> None:
    operation = answered(now, {"confirmed": [0, span]})

    outcomes = outcomes_over_time(operation, now=now)

    assert outcomes is not None
    assert outcomes.width.total_seconds() in WIDTHS
    assert 2 <= len(outcomes.buckets) <= MOST_BUCKETS
    assert sum(bucket.total for bucket in outcomes.buckets) == 2
    assert outcomes.width == MINUTE or len(outcomes.buckets) > MOST_BUCKETS / 4


def test_a_large_operation_is_counted_by_its_windows(now: datetime) -> None:
    operation = of_windows(
        now, number=20, every=MINUTE, confirmed=300, recurred=150, skipped=50
    )

    outcomes = outcomes_over_time(operation, now=now)

    assert operation.total > MOST_READ
    assert outcomes is not None
    assert (outcomes.width, outcomes.is_by_window) == (2 * MINUTE, True)
    assert [bucket.total for bucket in outcomes.buckets] == [2 * 450] * 10
    assert {bucket.counts["recurred"] for bucket in outcomes.buckets} == {300}


def test_a_bucket_spans_some_windows_of_a_slow_operation(now: datetime) -> None:
    operation = of_windows(now, number=24, every=8 * MINUTE)

    outcomes = outcomes_over_time(operation, now=now)

    assert outcomes is not None
    assert outcomes.width == 30 * MINUTE
    assert all(bucket.total for bucket in outcomes.buckets)


def test_the_read_does_not_grow_with_the_messages_of_a_window(now: datetime) -> None:
    """A hundred times as many messages in as many windows read as many rows."""
    few = of_windows(now, number=60, every=MINUTE, size=100)
    many = of_windows(now, number=60, every=MINUTE, size=10_000)

    read = [rows_read(operation, now) for operation in (few, many)]

    assert read[0] == read[1] <= 2 * 60


def rows_read(operation: Operation, now: datetime) -> int:
    """Return how many rows of tables the statement reads, as Postgres counts them."""
    with CaptureQueriesContext(connection) as queries:
        outcomes_over_time(operation, now=now)
    (statement,) = [q["sql"] for q in queries if "date_bin" in q["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING off) {statement}")
        plan = "\n".join(row for (row,) in cursor.fetchall())
    scans = re.findall(
        r"Scan (?:using \S+ )?on (?:poison|triage)\w+"
        r".*?actual rows=([\d.]+) loops=(\d+)",
        plan,
    )
    assert scans, plan
    return sum(round(float(rows)) * int(loops) for rows, loops in scans)


def test_an_operation_that_sent_nothing_has_no_outcomes(now: datetime) -> None:
    small = decided(now, total=3, state="queued")
    large = of_windows(now, number=20, every=MINUTE, skipped=500)

    assert outcomes_over_time(small, now=now) is None
    assert outcomes_over_time(large, now=now) is None


def test_the_page_draws_each_outcome_and_gives_its_numbers_in_a_table(
    anna: Client, now: datetime
) -> None:
    operation = answered(
        now, {"confirmed": [0, 0, 0, 4], "recurred": [4], "sent": [4], "refused": [4]}
    )

    page = get(anna, f"/operations/{operation.pk}")

    chart = page.partition('id="over-time"')[2].partition("</section>")[0]
    begin = hour_of(now)
    assert "handed to a broker within 1 minute, by what" in words(chart)
    assert "a bar of full height is 4 messages" in words(chart)
    assert "blocks" not in chart
    assert chart.count('role="img"') == 6
    assert f"4 in all; most, 3, in the minute from {begin:%Y-%m-%d %H:%M} UTC" in chart
    assert re.findall(r'<div class="bad"><dt><span class="pill (\w+)"', chart) == [
        "danger",
        "danger",
    ]
    table = words(chart.partition("<table>")[2].replace("<", " <"))
    assert table.endswith(
        "Minute from All ✓ Handled ↺ Came back ! Refused → Sent ◌ Silent "
        f"{begin:%Y-%m-%d %H:%M}:00 UTC 3 3 0 0 0 0 "
        f"{begin + 4 * MINUTE:%Y-%m-%d %H:%M}:00 UTC 4 1 1 1 1 1"
    )


def test_the_page_of_a_large_operation_says_how_its_messages_are_counted(
    anna: Client, now: datetime
) -> None:
    operation = of_windows(now, number=20, every=MINUTE)

    page = words(get(anna, f"/operations/{operation.pk}"))

    assert "handed to a broker within 2 minutes, by what" in page
    assert "Messages are counted in blocks of hundreds" in page


def test_a_single_bar_is_said_in_a_sentence(anna: Client, now: datetime) -> None:
    operation = answered(now, {"confirmed": [0, 0]})

    page = get(anna, f"/operations/{operation.pk}")

    assert 'id="over-time"' not in page
    begin = f"{hour_of(now):%Y-%m-%d %H:%M}:00 UTC"
    assert f"2 messages, within the minute from {begin}" in words(page)


def test_a_drop_has_no_outcomes_over_time(anna: Client, now: datetime) -> None:
    operation = decided(now, verb="drop", reason="a test", total=1)

    page = get(anna, f"/operations/{operation.pk}")

    assert "Outcomes over time" not in page
    assert "<dt>Tried</dt>" not in page


@pytest.mark.django_db(transaction=True)
def test_outcomes_that_take_too_long_to_count_are_marked(
    anna: Client, now: datetime
) -> None:
    operation = answered(now, {"confirmed": [0, 4]})

    with slow(lambda _: True):
        page = get(anna, f"/operations/{operation.pk}")

    assert "Counting them took too long just now." in words(page)
    assert "The numbers of each bar" not in page
