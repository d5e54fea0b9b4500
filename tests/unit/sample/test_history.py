"""What the four weeks hold, on whatever weekday they begin."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import date, time, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from redis import Redis

from poisonguard.fingerprint import Fingerprint, fingerprint
from poisonweb.sample.consumer import MessageHandler
from poisonweb.sample.consumers_and_their_topics import (
    BILLING,
    CONTENT,
    SampleSubscription,
)
from poisonweb.sample.handlers import Billing, Payments, Superstitious
from poisonweb.sample.history import consumer_reports, traffic_streams_and_faults
from poisonweb.sample.history.daily_failure_plan import (
    DayPlan,
    PlannedStep,
    Poisoned,
    StepKind,
    plan,
)
from poisonweb.sample.history.expected_report_numbers import ExpectedNumbers
from poisonweb.sample.history.traffic_calendar import DAY, DAYS, Weeks
from poisonweb.sample.history.traffic_streams_and_faults import (
    FailureMode,
    Fate,
    TrafficStream,
)
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.unit.sample.conftest import Consume

pytestmark = pytest.mark.together

MONDAY = date(2026, 10, 19)
FIRST_DAYS = [MONDAY + number * DAY for number in range(7)]
CONTENTS, ORDERS, ARCHIVE, SHIPMENTS = traffic_streams_and_faults.STREAMS


@cache
def days(first: date = MONDAY) -> dict[date, DayPlan]:
    weeks = Weeks(first=first)
    return {day: plan(weeks, day) for day in weeks}


def poisons(first: date = MONDAY) -> list[Poisoned]:
    return [p for day in days(first).values() for p in day.poisons]


def steps(first: date = MONDAY) -> list[PlannedStep]:
    return [step for day in days(first).values() for step in day.steps]


def delivered(stream: TrafficStream, some_days: Iterable[DayPlan]) -> int:
    return sum(
        count.handled + count.failed
        for day in some_days
        for count in day.counts
        if count.stream is stream
    )


@cache
def lines(first: date = MONDAY) -> list[dict[str, Any]]:
    return list(ExpectedNumbers(days(first).values()).lines())


def hours(first: date = MONDAY) -> list[dict[str, Any]]:
    return [line for line in lines(first) if "hour" in line]


def rate(fault: FailureMode, stream: TrafficStream, day: DayPlan) -> float:
    failed = sum(p.fault is fault for p in day.poisons)
    return failed / delivered(stream, [day])


def test_the_same_first_day_makes_the_same_history() -> None:
    again = plan(Weeks(first=MONDAY), MONDAY + 7 * DAY)

    assert again == days()[MONDAY + 7 * DAY]
    assert again != days(MONDAY + DAY)[MONDAY + 7 * DAY]


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_there_is_enough_to_report_and_not_too_much(first: date) -> None:
    counts = sum(len(day.counts) for day in days(first).values())

    assert len(days(first)) == DAYS
    assert 2_500 <= len(poisons(first)) <= 4_500
    assert 14_000 <= counts <= 20_000


@pytest.mark.parametrize("stream", [CONTENTS, ORDERS, SHIPMENTS], ids=str)
def test_every_delivery_is_counted_once(stream: TrafficStream) -> None:
    counts = [c for d in days().values() for c in d.counts if c.stream is stream]
    failures = [p for p in poisons() if p.stream is stream]
    again = [p for s in steps() if s.kind is StepKind.RECURRED for p in s.poisons]

    failed = len(failures) + sum(p.stream is stream for p in again)
    assert sum(count.failed for count in counts) == failed
    for count in counts:
        assert sum(n for _, n in count.durations) == count.handled + count.failed


def test_a_consumer_without_counters_has_failures_only() -> None:
    assert not any(c.stream is ARCHIVE for d in days().values() for c in d.counts)
    archived_hours = [hour for hour in hours() if hour["consumer_group"] == "archive"]

    assert {(hour["source"], hour["delivered"]) for hour in archived_hours} == {
        ("none", None)
    }
    assert sum(hour["failed"] for hour in archived_hours) > 50


def test_about_every_thirteenth_content_fails() -> None:
    failed = sum(p.stream is CONTENTS for p in poisons())

    assert 1 / 14 < failed / delivered(CONTENTS, days().values()) < 1 / 12


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_a_release_breaks_orders_for_some_hours_of_one_weekday(first: date) -> None:
    weeks = Weeks(first=first)
    broken = [
        p for p in poisons(first) if p.fault is traffic_streams_and_faults.RELEASE
    ]
    at = {p.failed_at.time() for p in broken}

    assert weeks.bad_day.strftime("%A") == "Wednesday"
    assert (weeks.last - weeks.bad_day).days >= 7
    assert {p.failed_at.date() for p in broken} == {weeks.bad_day}
    assert time(10) <= min(at) < max(at) < time(13, 20)
    assert 450 <= len(broken) <= 750
    assert {p.version for p in broken} == {"1.9"}
    others = (p for p in poisons(first) if p.failed_at.date() != weeks.bad_day)
    assert {p.version for p in others} == {"1.8"}


def test_messages_that_the_release_broke_are_handled_on_the_same_day() -> None:
    weeks = Weeks(first=MONDAY)
    broken = {p for p in poisons() if p.fault is traffic_streams_and_faults.RELEASE}

    (redrive,) = [
        step
        for step in steps()
        if step.kind is StepKind.REDRIVEN and broken & set(step.poisons)
    ]

    assert (redrive.at.date(), redrive.at.hour) == (weeks.bad_day, 17)
    assert set(redrive.poisons) == broken
    assert {p.fate for p in broken} == {Fate.HANDLED}


def test_messages_are_skipped_until_they_are_decided() -> None:
    skipped = {h["hour"]: h["skipped"] for h in hours() if h["skipped"]}

    assert set(skipped) == {13, 14, 15, 16}


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_weekends_are_calm_and_one_is_quiet(first: date) -> None:
    weeks = Weeks(first=first)
    whole = {
        day: delivered(ORDERS, [plan_of_day])
        for day, plan_of_day in days(first).items()
    }
    working = mean(n for day, n in whole.items() if day.weekday() < 5)
    calm = [
        n
        for day, n in whole.items()
        if day.weekday() >= 5 and day not in weeks.quiet_weekend
    ]

    assert [day.weekday() for day in weeks.quiet_weekend] == [5, 6]
    assert weeks.quiet_weekend[1] < weeks.last - 2 * DAY
    assert all(n < working / 2 for n in calm)
    assert all(whole[day] < min(calm) / 4 for day in weeks.quiet_weekend)


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_no_order_is_delivered_while_the_shop_is_maintained(first: date) -> None:
    day = Weeks(first=first).maintenance.isoformat()
    hours_of_day = [
        h for h in hours(first) if (h["day"], h["topic"]) == (day, "orders")
    ]

    assert {hour["hour"] for hour in hours_of_day} == set(range(24)) - {3, 4}


def test_days_have_a_rhythm() -> None:
    by_hour: Counter[int] = Counter()
    for hour in hours():
        by_hour[hour["hour"]] += hour["delivered"] or 0

    assert by_hour[9] > 4 * by_hour[3]


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_one_problem_grows_slowly(first: date) -> None:
    rates = {
        day: rate(traffic_streams_and_faults.PAYMENTS_AWAY, ORDERS, plan_of_day)
        for day, plan_of_day in days(first).items()
    }
    *before, last = [
        value
        for day, value in rates.items()
        if day.weekday() == Weeks(first=first).last.weekday()
    ]

    assert last > 2 * mean(before)


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_few_poisons_stay_open(first: date) -> None:
    open_poisons = [p for p in poisons(first) if p.fate is Fate.OPEN]

    assert len(open_poisons) <= 15
    assert {p.stream.topic for p in open_poisons} <= {"shipments"}


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_a_poison_is_decided_after_it_failed_and_within_the_weeks(first: date) -> None:
    end = Weeks(first=first).last + DAY
    for step in steps(first):
        assert step.at.date() < end
        assert all(p.failed_at < step.at for p in step.poisons)


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_decisions_come_in_the_order_of_time(first: date) -> None:
    decided = [step.at for step in steps(first) if step.reason]

    assert all(earlier < later for earlier, later in pairwise(decided))
    assert len(decided) >= 2 * DAYS


@pytest.mark.parametrize("first", FIRST_DAYS)
def test_the_steps_of_every_poison_follow_its_fate(first: date) -> None:
    became: dict[Poisoned, list[StepKind]] = {}
    for step in steps(first):
        for poisoned in step.poisons:
            became.setdefault(poisoned, []).append(step.kind)

    redriven, confirmed = StepKind.REDRIVEN, StepKind.CONFIRMED
    recurred, dropped = StepKind.RECURRED, StepKind.DROPPED
    stories = {
        Fate.HANDLED: [redriven, confirmed],
        Fate.HANDLED_AT_LAST: [redriven, recurred, redriven, confirmed],
        Fate.GIVEN_UP: [redriven, recurred, dropped],
        Fate.CAME_BACK: [redriven, confirmed, recurred, dropped],
        Fate.DROPPED: [dropped],
        Fate.OPEN: [],
    }
    assert {p.fate for p in poisons(first)} | {Fate.OPEN} == set(stories)
    for poisoned in poisons(first):
        assert became.get(poisoned, []) == stories[poisoned.fate]


def test_every_number_and_bookmark_is_of_one_message() -> None:
    assert len({p.number for p in poisons()}) == len(poisons())
    assert len({p.bookmark(p.failed_at) for p in poisons()}) == len(poisons())


def test_the_ledger_adds_up() -> None:
    totals: Counter[str] = Counter()
    problems: Counter[str] = Counter()
    for line in lines():
        into = totals if "hour" in line else problems
        into.update({k: n for k, n in line.items() if isinstance(n, int)})

    assert totals["poisoned"] == problems["poisoned"] == len(poisons())
    assert (
        totals["failed"]
        == totals["poisoned"] + totals["recurred"]
        == problems["failed"]
    )
    for what in StepKind:
        number = sum(len(step.poisons) for step in steps() if step.kind is what)
        assert totals[what.value] == problems[what.value] == number
    by_sdk = [hour for hour in hours() if hour["source"] == "sdk"]
    assert by_sdk
    for hour in by_sdk:
        assert hour["delivered"] == hour["handled"] + hour["failed"]
        assert sum(hour["durations"].values()) == hour["delivered"]


def test_a_ledger_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "sample-history.jsonl"
    path.write_text("half a l")

    ExpectedNumbers(days().values()).write(path)

    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == json.loads(json.dumps(lines()))
    assert list(tmp_path.iterdir()) == [path]


def test_every_message_of_the_history_is_marked() -> None:
    for poisoned in poisons()[:50]:
        report = consumer_reports.failure(poisoned, at=poisoned.failed_at, redrive=None)

        assert report.host == "sample-history"
        assert (b"x-sample", b"history") in report.headers
        assert report.client_name.endswith("(sample history)")
    for step in steps():
        decided = step.kind in {StepKind.REDRIVEN, StepKind.DROPPED}
        assert step.reason.startswith("sample history: ") == decided


def handler_of(subscription: SampleSubscription) -> MessageHandler:
    """Give today's handler, at a time when the payments are away."""
    if subscription is CONTENT:
        return Superstitious()
    age = timedelta(seconds=20)
    return Billing(
        payments=Payments(lambda: age),
        age=lambda: age,
        release_after=timedelta(minutes=1),
    )


OF_TODAY = [
    (CONTENT, traffic_streams_and_faults.SUPERSTITION),
    *(
        (BILLING, fault)
        for fault in traffic_streams_and_faults.ORDER_FAULTS
        if fault is not traffic_streams_and_faults.RELEASE
    ),
]


@pytest.mark.parametrize(
    ("subscription", "fault"),
    OF_TODAY,
    ids=lambda value: getattr(value, "title", "") or value.topic,
)
def test_todays_failures_belong_to_the_same_problems_as_those_of_the_history(
    subscription: SampleSubscription,
    fault: FailureMode,
    redis: Redis,
    server: FakeServer,
    consume: Consume,
) -> None:
    then = next(p for p in poisons() if p.fault is fault)
    redis.xadd(subscription.topic, {"body": fault.body(then.number)})

    consume(handler_of(subscription), subscription)

    (today,) = server.reports.failures.values()
    assert today["attempts"] == fault.attempts
    raised, raises = consumer_reports.invent_exception(then), today["exception"]
    assert classified(raised.type, raised.message, raised.traceback) == classified(
        raises["type"], raises["message"], raises["traceback"]
    )


def classified(kind: str, message: str, trace: str) -> Fingerprint:
    return fingerprint(
        exception_type=kind,
        exception_message=message,
        traceback=trace,
        cause="",
        message_type="",
        body=b"",
    )
