"""Waits between tries, their bounds, and Retry-After."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.redelivery.delivery_ids import new_delivery_id
from apps.redelivery.endpoint_and_delivery_choices import IntervalGrowth, Jitter
from apps.redelivery.retry_plan import (
    LONGEST_WAIT,
    SHORTEST_WAIT,
    RetryPlan,
    retry_after_seconds,
)

NOW = datetime(2026, 5, 18, 12, 0, tzinfo=UTC)


@given(
    interval=st.floats(SHORTEST_WAIT, LONGEST_WAIT),
    backoff=st.sampled_from(IntervalGrowth),
    jitter=st.sampled_from(Jitter),
    retry_count=st.integers(1, 10_000),
    last_wait=st.floats(0, LONGEST_WAIT),
    retry_after=st.none() | st.floats(0, 1e9),
)
def test_no_wait_is_shorter_than_a_second_or_longer_than_the_longest(
    interval: float,
    backoff: IntervalGrowth,
    jitter: Jitter,
    retry_count: int,
    last_wait: float,
    retry_after: float | None,
) -> None:
    plan = RetryPlan(retries=None, interval=interval, backoff=backoff, jitter=jitter)

    wait = plan.wait(retry_count, last_wait=last_wait, retry_after=retry_after)

    assert SHORTEST_WAIT <= wait <= LONGEST_WAIT


def test_exponential_waits_double_up_to_the_longest() -> None:
    plan = RetryPlan(
        retries=9, interval=3.0, backoff=IntervalGrowth.EXPONENTIAL, longest=20.0
    )

    assert [plan.wait(count) for count in (1, 2, 3, 4, 5)] == [3, 6, 12, 20, 20]


@pytest.mark.parametrize(
    ("jitter", "least", "most"),
    [(Jitter.FULL, 1, 40), (Jitter.EQUAL, 20, 40), (Jitter.DECORRELATED, 10, 90)],
)
def test_a_jitter_spreads_waits_over_its_whole_range(
    jitter: Jitter, least: float, most: float
) -> None:
    plan = RetryPlan(
        retries=9, interval=10.0, backoff=IntervalGrowth.EXPONENTIAL, jitter=jitter
    )

    waits = [plan.wait(3, last_wait=30.0) for _ in range(2_000)]

    assert least <= min(waits) < max(waits) <= most
    quarter = (most - least) / 4
    assert min(waits) < least + quarter
    assert max(waits) > most - quarter


def test_retry_after_lengthens_a_wait_only() -> None:
    plan = RetryPlan(retries=9, interval=3.0, longest=60.0)

    waits = [plan.wait(1, retry_after=seconds) for seconds in (1.0, 30.0, 1e9)]

    assert waits == [3.0, 30.0, 60.0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (b"120", 120),
        (b"0", 0),
        (b"99999999999999999999", LONGEST_WAIT),
        (b"Mon, 18 May 2026 12:01:00 GMT", 60),
        (b"Mon, 18 May 2026 11:00:00 GMT", 0),
        (b"Mon, 18 May 2026 12:01:00", None),
        (b"-5", None),
        (b"soon", None),
        (b"\xff", None),
        ("١٢".encode(), None),
    ],
)
def test_retry_after_is_seconds_or_a_date(
    value: bytes | None, seconds: float | None
) -> None:
    assert retry_after_seconds(value, now=NOW) == seconds


def test_ids_of_deliveries_rise_in_a_process() -> None:
    ids = [new_delivery_id() for _ in range(10_000)]

    assert ids == sorted(set(ids))
    assert {(each.version, each.variant) for each in ids} == {
        (7, "specified in RFC 4122")
    }
