"""Repeats of one failure: what a folded one costs, against one with rows of its own.

Each report has an id of its own, and is one more failure of one message; their times
pass as they would in RATE a second. The baseline are first failures of as many
messages, up to 5,000. Target: a million repeats take 50 MB at most. NUMBER=1000000
measures it, BATCH=1 reports them one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from benchmarks._benchmark_harness import product, seconds

NUMBER = int(os.environ.get("NUMBER", "20000"))
BATCH = int(os.environ.get("BATCH", "500"))
RATE = int(os.environ.get("RATE", "100"))
MOST_FIRST = 5_000
MB = 1_000_000


def main() -> None:
    """Store first and repeated failures; print the time and bytes of each."""
    from django.db.models import Sum

    from apps.poison.models import Failure, Poison
    from benchmarks import _failures_to_capture as captures
    from poisonguard.contract import FailureReport

    topic = captures.topic()
    first = min(NUMBER, MOST_FIRST)
    store = partial(captures.capture, topic=topic)
    captures.capture(captures.reports(captures.PROBLEMS), topic)
    batches = [
        captures.reports(min(BATCH, first - start)) for start in range(0, first, BATCH)
    ]
    of_first = _measured(
        partial(_store_batches, store, batches), first, "first failures"
    )
    (report,) = captures.reports(1)
    store([report])
    start = datetime.now(UTC) - timedelta(seconds=NUMBER / RATE)

    def repeats() -> Iterator[list[FailureReport]]:
        for number in range(0, NUMBER, BATCH):
            yield [
                replace(
                    report,
                    report_id=uuid4(),
                    failed_at=start + timedelta(seconds=place / RATE),
                )
                for place in range(number, min(number + BATCH, NUMBER))
            ]

    of_repeats = _measured(partial(_store_batches, store, repeats()), NUMBER, "repeats")
    poison = Poison.objects.latest("failures")
    times = Failure.objects.filter(poison=poison).aggregate(number=Sum("times"))
    if poison.failures != NUMBER + 1 or times["number"] != NUMBER + 1:
        raise AssertionError((poison.failures, times))
    print(f"a million repeats: {of_repeats[1] * 1_000_000 / MB:.1f} MB")
    print(f"bytes of a repeat / of a first failure: {of_repeats[1] / of_first[1]:.3f}")
    print(f"repeats / first failures: {of_first[0] / of_repeats[0]:.2f}")


def _store_batches(store: partial[None], batches: Iterable[list[Any]]) -> None:
    """Store each of the benchmark's batches of failure reports by `store`."""
    for batch in batches:
        store(batch)


def _measured(work: partial[None], number: int, name: str) -> tuple[float, float]:
    """Store failures by `work`; print and return the seconds and bytes of each.

    The bytes are those by which the database grows.
    """
    before = _size()
    time = seconds(work) / number
    size = (_size() - before) / number
    print(f"{name}: {1 / time:,.0f}/s in batches of {BATCH}, {size:,.0f} bytes each")
    return time, size


def _size() -> int:
    """Return the bytes of the benchmark's database: tables, indexes and dead rows."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        (size,) = cursor.fetchone()
    return int(size)


if __name__ == "__main__":
    with product(durable=True):
        main()
