from __future__ import annotations

from datetime import timedelta

import pytest

from poisonguard.contract import parse_counter
from poisonweb.sample.counters import Counters, bucket_of, this_minute

LATER = timedelta(minutes=2)


def test_a_minute_is_reported_once_and_when_it_is_over() -> None:
    counters = Counters()
    counters.add("orders", failed=False, retried=2, seconds=0.001)
    counters.add("orders", failed=True, retried=0, seconds=3.0)

    (running, _) = min(counters._minutes)
    early = counters.take(before=running)
    (report,) = counters.take(before=this_minute() + LATER)

    assert (early, counters.take(before=this_minute() + LATER)) == ([], [])
    assert (report.handled, report.failed, report.retried) == (1, 1, 2)
    assert report.duration_ms_hist == ((0, 1), (11, 1))
    assert (report.consumer_group, report.client_name) == ("billing", "billing-1")
    assert parse_counter(report.to_wire()) == report


def test_each_report_has_a_sequence_of_its_own() -> None:
    counters = Counters()
    for topic in ("orders", "ContentTopic"):
        counters.add(topic, failed=False, retried=0, seconds=0.0)

    one, two = counters.take(before=this_minute() + LATER)

    assert (one.reporter, one.sequence + 1) == (two.reporter, two.sequence)


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.0019, 0), (0.002, 1), (0.0039, 1), (0.004, 2), (1e30, 63)],
)
def test_a_bucket_is_a_power_of_two(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket
