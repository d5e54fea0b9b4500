"""Where positions stood before: a sample a minute, kept for 30 days."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection

KEPT = timedelta(days=30)

_TAKE = """
INSERT INTO bookmarks_sample (mark_id, at, processed)
SELECT mark.id, %(now)s, mark.processed
FROM bookmarks_mark mark LEFT JOIN LATERAL (
    SELECT processed, at FROM bookmarks_sample WHERE mark_id = mark.id
    ORDER BY at DESC LIMIT 1
) latest ON true
WHERE latest.at IS NULL
   OR latest.processed <> mark.processed
  AND latest.at < date_trunc('minute', %(now)s::timestamptz)
ORDER BY mark.id
ON CONFLICT (mark_id, at) DO NOTHING
"""
# The last one of before tells where the mark stood when the kept time began.
_PRUNE = """
DELETE FROM bookmarks_sample old
WHERE old.at < %(before)s AND EXISTS (
    SELECT FROM bookmarks_sample newer
    WHERE newer.mark_id = old.mark_id AND newer.at > old.at AND newer.at <= %(before)s
)
"""
_STOOD = """
SELECT mark.publisher, latest.processed
FROM bookmarks_mark mark CROSS JOIN LATERAL (
    SELECT processed FROM bookmarks_sample
    WHERE mark_id = mark.id AND at <= %(at)s ORDER BY at DESC LIMIT 1
) latest
WHERE mark.position_id = %(position)s
"""


def take(*, now: datetime) -> int:
    """Note where each mark stands that has changed; give their number."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"now": now})
        return int(cursor.rowcount)


def prune(*, now: datetime) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_PRUNE, {"before": now - KEPT})
        return int(cursor.rowcount)


def stood(*, position_id: int, at: datetime) -> dict[str, int]:
    """Give each publisher's watermark of this moment, as far as it was noted.

    It is the last one noted before it, so what was settled since then is not counted.
    """
    with connection.cursor() as cursor:
        cursor.execute(_STOOD, {"position": position_id, "at": at})
        return dict(cursor.fetchall())
