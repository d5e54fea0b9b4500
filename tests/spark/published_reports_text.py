"""The published reports as text, to compare two nights."""

from __future__ import annotations

from datetime import date

from django.db import connection

RATES = """
SELECT day_id, hour, topic_id, consumer_group, source, delivered, failed, uncounted,
       poisoned, skipped, retried, redriven, confirmed, recurred, dropped,
       failure_rate, rate_low, rate_high, p50_ms, p95_ms, p99_ms
FROM reports_rate WHERE day_id = coalesce(%(day)s::date, day_id) ORDER BY 1, 2, 3, 4
"""
PROBLEMS = """
SELECT day_id, problem_id, delivered, failed, poisoned, retried, redriven, confirmed,
       recurred, dropped, failure_rate, rate_low, rate_high
FROM reports_problem_day WHERE day_id = coalesce(%(day)s::date, day_id) ORDER BY 1, 2
"""
ENDPOINTS = """
SELECT day_id, topic_id, endpoint, calls, succeeded_at_first, after_1, after_2, after_3,
       after_4_to_10, after_more, given_up, dropped, forwarded, unknown, waiting, timed,
       p50_ms, p95_ms, longest_ms, is_partial
FROM reports_endpoint_day WHERE day_id = coalesce(%(day)s::date, day_id) ORDER BY 1, 2
"""
DAYS = """
SELECT day, rows_in FROM reports_day WHERE day = coalesce(%(day)s::date, day) ORDER BY 1
"""


def published(day: date | None = None) -> str:
    """Return the published rows of a day, or of all, in key order, as CSV."""
    parts: list[str] = []
    with connection.cursor() as cursor:
        for query in (RATES, PROBLEMS, ENDPOINTS, DAYS):
            copy = f"COPY ({query}) TO STDOUT (FORMAT csv)"
            with cursor.copy(copy, {"day": day}) as rows:
                parts += [bytes(row).decode() for row in rows]
    return "".join(parts)
