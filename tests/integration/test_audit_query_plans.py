"""Filters of the audit trail read only what they show, however long the trail is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection

from apps.audit.filters import TrailFilter
from apps.dashboard.keyset_pagination import ListCursor
from apps.dashboard.selectors import audit_trail

pytestmark = pytest.mark.django_db

ENTRIES = 100_000
A_DAY = 1_000
START = datetime(2026, 8, 1, tzinfo=UTC)
# A page of fifty and the row after it, and the rows read to find them.
MOST_READ = 300
# A thousand entries a day. Every other one is the worker's; one rare person and action
# occur at the beginning only.
FILL = """
INSERT INTO audit_entry (seq, record, hash)
SELECT n, json_build_object(
    'seq', n, 'at_us', %(start)s + n * 86400000000 / %(a_day)s,
    'actor', CASE WHEN n <= 20 THEN 'user:rare' WHEN n %% 2 = 0 THEN 'system:worker'
             ELSE 'user:' || n %% 50 END,
    'action', CASE WHEN n <= 20 THEN 'position.moved' WHEN n %% 2 = 0
              THEN 'operation.finished' ELSE 'operation.confirmed' END,
    'subject', 'operation:' || n / 2, 'reason', '', 'source', 'ui',
    'detail', json_build_object('problems', json_build_array(n / 100))
)::text, sha256(n::text::bytea)
FROM generate_series(1, %(entries)s) AS n
"""


def fill() -> None:
    start = int(START.timestamp() * 1_000_000)
    with connection.cursor() as cursor:
        values = {"start": start, "a_day": A_DAY, "entries": ENTRIES}
        cursor.execute(FILL, values)
        cursor.execute("ANALYZE audit_entry")


def rows_read(trail_filter: TrailFilter, cursor: ListCursor | None = None) -> int:
    """Count the entries that Postgres reads for a page, by index or without."""
    before = _rows_read()
    audit_trail.find(trail_filter, cursor, sees_people=True)
    return _rows_read() - before


def _rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables"
            " WHERE relname = 'audit_entry'"
        )
        return int(cursor.fetchone()[0])


def test_a_page_reads_no_more_than_it_shows() -> None:
    fill()
    filters: dict[str, dict[str, str]] = {
        "nothing": {},
        "a person": {"actor": "user:7"},
        "a rare person": {"actor": "user:rare"},
        "nobody": {"actor": "user:nobody"},
        "a name": {"actor": "7"},
        "a name that nobody has": {"actor": "nobody"},
        "an action": {"action": "operation.confirmed"},
        "a rare action": {"action": "position.moved"},
        "no such action": {"action": "skip.added"},
        "a thing": {"subject": "operation:7"},
        "a problem": {"subject": "problem:300"},
        "a problem that is not there": {"subject": "problem:99999999"},
        "a person who never did it": {
            "actor": "system:worker",
            "action": "operation.confirmed",
        },
        "a person and a thing": {"actor": "system:worker", "subject": "operation:7"},
    }

    read = {
        name: rows_read(TrailFilter.parse(params)) for name, params in filters.items()
    }
    deep = rows_read(TrailFilter(), ListCursor(newer=False, pk=1_000))
    back = rows_read(TrailFilter(), ListCursor(newer=True, pk=1_000))

    assert {name: number for name, number in read.items() if number > MOST_READ} == {}
    assert max(deep, back) <= MOST_READ


def test_a_filter_by_old_days_reads_only_their_entries() -> None:
    fill()
    days = {"from": "2026-08-02", "to": "2026-08-02"}

    read = {
        actor: rows_read(TrailFilter.parse({**days, "actor": actor}))
        for actor in ("", "user:rare", "user:7")
    }

    # One scan by time, to find the numbers, and one by number or by actor.
    assert {who: n for who, n in read.items() if n > 2 * A_DAY + MOST_READ} == {}
