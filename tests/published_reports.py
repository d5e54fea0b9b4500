"""Published reports, written directly without a nightly run."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from apps.brokers.models import Topic
from apps.poison.models import Problem
from apps.reports.models import Day, EndpointDay, ProblemDay, Rate, Run

ONE_DAY = timedelta(days=1)


def run(first: date, last: date | None = None, **changes: object) -> Run:
    """Create a run of these days that was done an hour after midnight."""
    over = datetime.combine(last or first, time(1), UTC) + ONE_DAY
    whole = {
        "first_day": first,
        "last_day": last or first,
        "state": "done",
        "asked_by": "system:nightly",
        "asked_at": over,
        "started_at": over,
        "as_of": over,
        "finished_at": over + timedelta(seconds=9),
        "snapshot": "1:1:",
        "rows_in": 100,
        "late_rows": 2,
    }
    return Run.objects.create(**{**whole, **changes})


def failed_run(day: date, **changes: object) -> Run:
    changes.setdefault("trouble", "The job broke.")
    return run(day, None, state="failed", **changes)


def publish(*days: date) -> list[Day]:
    published_run = run(min(days), max(days))
    return Day.objects.bulk_create(
        Day(day=day, run=published_run, rows_in=100, late_rows=2) for day in days
    )


def rate(
    day: date,
    delivered: int | None,
    failed: int,
    *,
    topic: str = "orders",
    **rest: object,
) -> Rate:
    """Add a rate to a published day; create the topic if it is missing."""
    topic_row, _ = Topic.objects.get_or_create(name=topic, native_name=topic)
    uncounted = failed if delivered is None else int(str(rest.pop("uncounted", 0)))
    share = (failed - uncounted) / delivered if delivered else None
    whole: dict[str, object] = {
        "source": "none" if delivered is None else "sdk",
        "uncounted": uncounted,
        "failure_rate": share,
        "rate_low": None if share is None else share / 2,
        "rate_high": None if share is None else min(1.0, share * 2),
        **dict.fromkeys(("poisoned", "skipped", "retried", "redriven"), 0),
        **dict.fromkeys(("confirmed", "recurred", "dropped"), 0),
        "p50_ms": 16,
    }
    return Rate.objects.create(
        day_id=day,
        topic=topic_row,
        delivered=delivered,
        failed=failed,
        **{**whole, **rest},
    )


def problem_day(day: date, problem: Problem, failed: int) -> ProblemDay:
    return ProblemDay.objects.create(
        day_id=day,
        problem=problem,
        failed=failed,
        **dict.fromkeys(("poisoned", "retried", "redriven"), 0),
        **dict.fromkeys(("confirmed", "recurred", "dropped"), 0),
    )


def endpoint_day(day: date, endpoint: str = "quote", **changes: object) -> EndpointDay:
    """Add an endpoint to a published day, which counts endpoints from then on."""
    Day.objects.filter(day=day).update(counts_endpoints=True)
    name = f"gateway/{endpoint}"
    topic, _ = Topic.objects.get_or_create(name=name, native_name=name)
    whole: dict[str, object] = {
        "calls": 20,
        "succeeded_at_first": 13,
        "after_1": 2,
        **dict.fromkeys(("after_2", "after_3", "after_4_to_10", "after_more"), 0),
        "given_up": 1,
        **dict.fromkeys(("dropped", "forwarded", "unknown", "waiting"), 0),
        "timed": 2,
        **dict.fromkeys(("p50_ms", "p95_ms", "longest_ms"), 3012),
        "is_partial": False,
    }
    return EndpointDay.objects.create(
        day_id=day, topic=topic, endpoint=endpoint, **{**whole, **changes}
    )
