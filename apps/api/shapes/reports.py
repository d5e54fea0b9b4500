"""Failure rates, and the runs of the nightly report that measured them."""

from __future__ import annotations

from apps.api.shapes.base import Shape
from apps.reports.models import Rate, Run


def rate(row: Rate) -> Shape:
    """Show a failure rate with its counts and interval."""
    return {
        "day": row.day_id,
        "hour": row.hour,
        "topic": row.topic.name,
        "sample": row.topic.broker is not None and row.topic.broker.is_sample,
        "consumer_group": row.consumer_group,
        "source": row.source,
        "delivered": row.delivered,
        "failed": row.failed,
        "uncounted": row.uncounted,
        "poisoned": row.poisoned,
        "skipped": row.skipped,
        "retried": row.retried,
        "redriven": row.redriven,
        "confirmed": row.confirmed,
        "recurred": row.recurred,
        "dropped": row.dropped,
        "failure_rate": row.failure_rate,
        "interval": _interval(row),
        "p50_ms": row.p50_ms,
        "p95_ms": row.p95_ms,
        "p99_ms": row.p99_ms,
        "run": row.day.run_id,
    }


def _interval(row: Rate) -> Shape | None:
    """Show a confidence interval; None without a rate."""
    if row.failure_rate is None:
        return None
    return {"low": row.rate_low, "high": row.rate_high}


def run(row: Run, *, with_trouble: bool) -> Shape:
    """Show a run; `trouble` may name topics that this principal does not see."""
    return {
        "id": row.pk,
        "state": row.state,
        "from": row.first_day,
        "to": row.last_day,
        "asked_by": row.asked_by,
        "asked_at": row.asked_at,
        "started_at": row.started_at,
        "as_of": row.as_of,
        "finished_at": row.finished_at,
        "seconds": row.duration and row.duration.total_seconds(),
        "rows_in": row.rows_in,
        "late_rows": row.late_rows,
        "trouble": row.trouble if with_trouble else None,
    }
