"""Check a run's staged rows against Postgres, and against each other.

The check queries the same snapshot that the job read, so that any difference is an
error. The error names the differences, and nothing is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from typing import Any

from django.db import connection

from apps.core.shared_postgres_snapshot import Snapshot
from apps.reports.errors import Unreconciled
from apps.reports.models import Run
from apps.reports.services import endpoint_control_sums
from apps.reports.services.endpoint_control_sums import FactRows
from apps.reports.services.planning import OLDEST_EVENT, days_of
from apps.reports.services.publishing import DayRows
from apps.reports.services.report_requests import ONE_DAY

Sums = dict[tuple[date, str], int]

_FACTS = """
WITH facts AS (
    SELECT failed_at AS at, 'failures' AS kind, times AS failures,
           is_first::int AS poisoned, 0 AS delivered, 0 AS skipped,
           captured_xid AS xid, captured_at
    FROM poison_failure
    WHERE day BETWEEN %(captured)s AND %(captured_until)s
      AND failed_at >= %(from)s AND failed_at < %(until)s
    UNION ALL
    SELECT minute, source, 0, 0, handled + failed, skipped, captured_xid,
           captured_at
    FROM capture_counter
    WHERE day BETWEEN %(captured)s AND %(captured_until)s
      AND minute >= %(from)s AND minute < %(until)s
    UNION ALL
    SELECT sent_at, 'redriven', 0, 0, 0, 0, NULL, NULL FROM poison_redrive
    WHERE sent_at >= %(from)s AND sent_at < %(until)s
    UNION ALL
    SELECT confirmed_at, 'confirmed', 0, 0, 0, 0, NULL, NULL FROM poison_redrive
    WHERE confirmed_at >= %(from)s AND confirmed_at < %(until)s
    UNION ALL
    SELECT answered_at, 'recurred', 0, 0, 0, 0, NULL, NULL FROM poison_redrive
    WHERE answered_at >= %(from)s AND answered_at < %(until)s AND outcome = 'recurred'
    UNION ALL
    SELECT operation.finished_at, 'dropped', 0, 0, 0, 0, NULL, NULL
    FROM triage_operation operation JOIN triage_selected_item item
      ON item.operation_id = operation.id AND item.number < operation.judged
    WHERE operation.verb = 'drop'
      AND NOT EXISTS (SELECT FROM triage_skipped_item skip
                      WHERE skip.operation_id = item.operation_id
                        AND skip.number = item.number)
      AND operation.finished_at >= %(from)s AND operation.finished_at < %(until)s
)
SELECT (at AT TIME ZONE 'UTC')::date, kind, count(*), sum(failures), sum(poisoned),
       sum(delivered), sum(skipped),
       count(*) FILTER (WHERE captured_at > run.as_of
                        OR NOT pg_visible_in_snapshot(xid, run.snapshot))
FROM facts
LEFT JOIN reports_day published ON published.day = (at AT TIME ZONE 'UTC')::date
LEFT JOIN reports_run run ON run.id = published.run_id
GROUP BY 1, 2
"""

_STAGED = """
SELECT day, sum(poisoned), sum(redriven), sum(confirmed), sum(recurred), sum(dropped),
       coalesce(sum(delivered) FILTER (WHERE source = 'sdk'), 0),
       coalesce(sum(skipped) FILTER (WHERE source = 'sdk'), 0)
FROM reports_staged_rate
WHERE run_id = %(run)s AND epoch = %(epoch)s
  AND hour IS NOT NULL AND consumer_group IS NOT NULL
GROUP BY day
"""

_STAGED_PROBLEMS = """
SELECT day, sum(failed) FROM reports_staged_problem
WHERE run_id = %(run)s AND epoch = %(epoch)s GROUP BY day
"""

# The four grains (day or hour, group or all) must add up to the same sums.
_GRAINS_DIFFER = """
SELECT day, topic FROM (
    SELECT day, topic, sum(failed) AS failed, sum(delivered) AS delivered,
           sum(poisoned) AS poisoned, sum(skipped) AS skipped,
           sum(retried) AS retried, sum(redriven) AS redriven,
           sum(confirmed) AS confirmed, sum(recurred) AS recurred,
           sum(dropped) AS dropped, sum(uncounted) AS uncounted
    FROM reports_staged_rate WHERE run_id = %(run)s AND epoch = %(epoch)s
    GROUP BY day, topic, hour IS NULL, consumer_group IS NULL
) grains
GROUP BY day, topic
HAVING count(*) <> 4 OR count(DISTINCT (failed, delivered, poisoned, skipped, retried,
    redriven, confirmed, recurred, dropped, uncounted)) <> 1
ORDER BY day, topic LIMIT 3
"""

_IMPOSSIBLE = """
SELECT day, topic FROM reports_staged_rate
WHERE run_id = %(run)s AND epoch = %(epoch)s
  AND (day < %(first)s OR day > %(last)s OR hour NOT BETWEEN 0 AND 23
       OR least(delivered, failed, poisoned, skipped, retried, redriven, confirmed,
                recurred, dropped, uncounted) < 0
       OR source = 'sdk' AND consumer_group IS NOT NULL AND failed > delivered
       OR topic NOT IN (SELECT name FROM brokers_topic))
UNION
SELECT day, problem::text FROM reports_staged_problem
WHERE run_id = %(run)s AND epoch = %(epoch)s
  AND (day < %(first)s OR day > %(last)s
       OR least(delivered, failed, poisoned, retried, redriven, confirmed, recurred,
                dropped) < 0
       OR problem NOT IN (SELECT id FROM poison_problem))
ORDER BY 1, 2 LIMIT 3
"""


def check(
    *, run: Run, snapshot: Snapshot, rows_read: Mapping[str, int]
) -> dict[date, DayRows]:
    """Compare a report's staged rows with its facts; return how many facts a day has.

    Raises Unreconciled when numbers differ. `rows_read` is how many facts of each kind
    the job reports as read.
    """
    facts = snapshot.query(_FACTS, _window(run))
    endpoint_rows, sums_of_endpoints = endpoint_control_sums.expected_sums(
        snapshot, _window(run)
    )
    counts = _count_by_kind(facts)
    counts |= {kind: days.total() for kind, days in endpoint_rows.items()}
    _require_equal("rows read", counts, {**rows_read})
    _require_equal("the day and number", _expected_sums(facts), _staged_sums(run))
    _require_equal(
        "an endpoint", sums_of_endpoints, endpoint_control_sums.staged_sums(run)
    )
    _refuse_any("its grains differ", _GRAINS_DIFFER, run)
    _refuse_any("impossible numbers", _IMPOSSIBLE, run)
    _refuse_any("impossible numbers", endpoint_control_sums.IMPOSSIBLE, run)
    return {day: _count_rows(facts, endpoint_rows, day) for day in days_of(run)}


def _window(run: Run) -> dict[str, Any]:
    """Return a report run's days and times as parameters of the statements."""
    return {
        "first": run.first_day,
        "last": run.last_day,
        # Clocks may be minutes ahead: a day's failure may be captured the day before.
        "captured": run.first_day - ONE_DAY,
        "captured_until": run.last_day + OLDEST_EVENT,
        "from": datetime.combine(run.first_day, time.min, UTC),
        "until": datetime.combine(run.last_day + ONE_DAY, time.min, UTC),
    }


_KINDS = {"failures": "failures", "sdk": "counters", "broker": "counters"}


def _count_by_kind(facts: list[tuple[Any, ...]]) -> dict[str, int]:
    """Count facts read from Postgres's own tables, to compare with the staged."""
    counts = dict.fromkeys(("failures", "counters", "decisions"), 0)
    for _, kind, number, *_rest in facts:
        counts[_KINDS.get(kind, "decisions")] += number
    return counts


def _count_rows(
    facts: list[tuple[Any, ...]], endpoint_rows: FactRows, day: date
) -> DayRows:
    """Count the facts of a day that a report read, and the late ones among them."""
    of_day = [fact for fact in facts if fact[0] == day]
    of_endpoints = sum(days[day] for days in endpoint_rows.values())
    return DayRows(
        total=sum(fact[2] for fact in of_day) + of_endpoints,
        late=sum(fact[7] for fact in of_day),
    )


def _expected_sums(facts: list[tuple[Any, ...]]) -> Sums:
    """Add up what a report's facts say that each (day, measure) has."""
    expected: Sums = {}
    for day, kind, number, failures, poisoned, delivered, skipped, _late in facts:
        if kind == "failures":
            expected |= {(day, "failures"): failures, (day, "poisoned"): poisoned}
        elif kind == "sdk":
            expected |= {(day, "delivered"): delivered, (day, "skipped"): skipped}
        elif kind != "broker":
            expected[day, kind] = number
    return {key: int(value) for key, value in expected.items() if value}


def _staged_sums(run: Run) -> Sums:
    """Add up what a run's staged rows say that each (day, measure) has."""
    decisions = ("redriven", "confirmed", "recurred", "dropped")
    names = ("poisoned", *decisions, "delivered", "skipped")
    sums: Sums = {}
    for day, *values in _query_rows(_STAGED, run):
        sums |= {(day, n): v for n, v in zip(names, values, strict=True)}
    for day, failures in _query_rows(_STAGED_PROBLEMS, run):
        sums[day, "failures"] = failures
    return {key: int(value) for key, value in sums.items() if value}


def _query_rows(statement: str, run: Run) -> list[tuple[Any, ...]]:
    """Execute a statement with a report run's parameters; return the rows."""
    values = {
        "run": run.pk,
        "epoch": run.epoch,
        **_window(run),
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _require_equal(
    what: str, expected: Mapping[Any, int], actual: Mapping[Any, int]
) -> None:
    """Raise Unreconciled, with the differences, unless a report's sums are equal."""
    if expected != actual:
        raise Unreconciled(f"{what}: {'; '.join(_differences(expected, actual))}")


def _differences(
    expected: Mapping[Any, int], actual: Mapping[Any, int]
) -> Iterator[str]:
    """Describe the first three differences of a report's sums, in order."""
    keys = sorted(
        key
        for key in {*expected, *actual}
        if expected.get(key, 0) != actual.get(key, 0)
    )
    for key in keys[:3]:
        name = key if isinstance(key, str) else f"{key[0]} {key[1]}"
        yield f"{name} is {actual.get(key, 0)}, Postgres has {expected.get(key, 0)}"


def _refuse_any(why: str, statement: str, run: Run) -> None:
    """Raise Unreconciled if a statement finds wrong rows (day, name) of a report."""
    rows = _query_rows(statement, run)
    if rows:
        places = "; ".join(f"{day} {name}" for day, name in rows)
        raise Unreconciled(f"{why}: {places}")
