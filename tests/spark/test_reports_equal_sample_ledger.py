"""Compare the published reports of the sample's history with its ledger.

The ledger counted while the history was generated. Plain Python sums it here by the
definitions of the reports, without Postgres and Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from apps.core import clock
from apps.core.actor import Actor
from apps.reports.models import Day, ProblemDay, Rate, Run
from apps.reports.services import report_requests, report_run_execution
from apps.reports.services.report_requests import newest_over
from poisonweb.management.commands import make_history
from poisonweb.sample.history.traffic_calendar import DAYS, Weeks
from tests.registered_brokers import sample_broker
from tests.spark.published_reports_text import published

pytestmark = [pytest.mark.spark, pytest.mark.django_db(transaction=True)]

Z = 1.959964
RANKS = ("none", "broker", "sdk")
BOTH = (
    *("failed", "poisoned", "retried"),
    *("redriven", "confirmed", "recurred", "dropped"),
)
RATED = ("failure_rate", "rate_low", "rate_high")
QUANTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}

Line = dict[str, Any]
Measures = dict[tuple[object, ...], Line]


@pytest.fixture
def ledger(settings: Settings, tmp_path: Path) -> Path:
    settings.POISONWEB_VAR = tmp_path
    settings.POISONWEB_LAKE = str(tmp_path / "lake")
    return tmp_path / "sample-history.jsonl"


def make(ledger: Path) -> Weeks:
    now = clock.now()
    sample_broker(now)
    return make_history.make(newest=newest_over(now), ledger=ledger)


def compiled(java_options: str) -> str:
    """Remove the options that keep Spark from compiling, as in production."""
    return re.sub(r"-Dspark\.sql\.codegen\.\S+", "", java_options)


def night(weeks: Weeks) -> Run:
    """Make the report of the weeks, as a worker does."""
    run = report_requests.queue(
        first_day=weeks.first,
        last_day=weeks.last,
        actor=Actor.system("test"),
        now=clock.now(),
    )
    report_run_execution.run(run_id=run.pk, clock=clock.now)
    return Run.objects.get(pk=run.pk)


def read(ledger: Path) -> tuple[list[Line], list[Line]]:
    """Parse the ledger's lines of hours, and those of problems."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    hours = [line for line in lines if "hour" in line]
    return hours, [line for line in lines if "hour" not in line]


# The expected reports, computed from the ledger only.


def rates(hours: Iterable[Line]) -> Measures:
    """Sum the hours by each of the four grains."""
    measures: Measures = {}
    for by_hour in (True, False):
        for by_consumer in (True, False):

            def place(
                line: Line, by_hour: bool = by_hour, by_consumer: bool = by_consumer
            ) -> tuple[object, ...]:
                hour = line["hour"] if by_hour else None
                consumer_group = line["consumer_group"] if by_consumer else None
                return line["day"], hour, line["topic"], consumer_group

            ordered = sorted(hours, key=lambda line: str(place(line)))
            for key, lines in groupby(ordered, key=place):
                measures[key] = summed(list(lines))
    return measures


def summed(lines: list[Line]) -> Line:
    durations: Counter[int] = Counter()
    for line in lines:
        durations.update({int(b): n for b, n in line["durations"].items()})
    counted = [line for line in lines if line["source"] != "none"]
    delivered = sum(line["delivered"] for line in counted) if counted else None
    failed = sum(line["failed"] for line in counted)
    return {
        "source": max((line["source"] for line in lines), key=RANKS.index),
        "delivered": delivered,
        "uncounted": sum(line["failed"] for line in lines if line not in counted),
        "skipped": sum(line["skipped"] for line in lines),
        **{name: sum(line[name] for line in lines) for name in BOTH},
        **rated(failed, delivered),
        **{name: quantile(durations, q) for name, q in QUANTILES.items()},
    }


def problems(days: Iterable[Line], whole: Measures) -> Measures:
    measures: Measures = {}
    for line in days:
        day, topic, group = line["day"], line["topic"], line["consumer_group"]
        delivered = whole[day, None, topic, group]["delivered"]
        measures[day, topic, group, line["problem"]] = {
            "delivered": delivered,
            **{name: line[name] for name in BOTH},
            **rated(line["failed"], delivered),
        }
    return measures


def rated(failed: int, delivered: int | None) -> Line:
    """Compute the rate with Wilson's score interval, as in his paper of 1927."""
    if not delivered:
        return dict.fromkeys(RATED)
    part = failed / delivered
    middle = failed + Z**2 / 2
    spread = Z * sqrt(failed * (delivered - failed) / delivered + Z**2 / 4)
    low = (middle - spread) / (delivered + Z**2)
    high = (middle + spread) / (delivered + Z**2)
    return {name: round(x, 9) for name, x in zip(RATED, (part, low, high), strict=True)}


def quantile(durations: Mapping[int, int], percent: int) -> int | None:
    """Find a quantile by sorting all durations."""
    every = sorted(Counter(durations).elements())
    place = -(-len(every) * percent // 100)
    return int(2 ** (every[place - 1] + 1)) if every else None


# The published reports.


def measures_of(row: Line) -> Line:
    return {
        k: round(v, 9) + 0.0 if k in RATED and v is not None else v
        for k, v in row.items()
    }


def published_rates() -> Measures:
    fields = ("source", "delivered", "uncounted", "skipped", *BOTH, *RATED, *QUANTILES)
    rows = Rate.objects.values(
        "day_id", "hour", "topic__name", "consumer_group", *fields
    )
    return {
        (
            row["day_id"].isoformat(),
            row["hour"],
            row["topic__name"],
            row["consumer_group"],
        ): measures_of({name: row[name] for name in fields})
        for row in rows
    }


def published_problems() -> Measures:
    fields = ("delivered", *BOTH, *RATED)
    keys = ("problem__topic__name", "problem__consumer_group", "problem__title")
    return {
        (row["day_id"].isoformat(), *(row[key] for key in keys)): measures_of(
            {name: row[name] for name in fields}
        )
        for row in ProblemDay.objects.values("day_id", *keys, *fields)
    }


def differences(
    published: Measures, expected: Measures
) -> Iterator[tuple[object, ...]]:
    for place in sorted({*published, *expected}, key=str):
        is_, ought = published.get(place, {}), expected.get(place, {})
        yield from (
            (place, name, is_.get(name), ought.get(name))
            for name in sorted({*is_, *ought})
            if name not in is_ or name not in ought or is_[name] != ought[name]
        )


def test_every_number_of_the_reports_equals_the_ledger_and_stays_equal(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weeks = make(ledger)

    first = night(weeks)
    once = published()
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", compiled(options))
    again = night(weeks)

    hours, days = read(ledger)
    expected = rates(hours)
    assert [(run.state, run.trouble) for run in (first, again)] == [("done", "")] * 2
    assert sorted(Day.objects.values_list("day", flat=True)) == list(weeks)
    assert len(expected) > 3 * 24 * DAYS
    assert list(differences(published_rates(), expected))[:20] == []
    assert list(differences(published_problems(), problems(days, expected)))[:20] == []
    assert published() == once
