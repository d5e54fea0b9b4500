"""Past watermarks of positions: a sample each minute, stored for 30 days."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection

RETENTION = timedelta(days=30)

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
# Keep the last older sample: it is the watermark at the start of the retention.
_PRUNE = """
DELETE FROM bookmarks_sample old
WHERE old.at < %(before)s AND EXISTS (
    SELECT FROM bookmarks_sample newer
    WHERE newer.mark_id = old.mark_id AND newer.at > old.at AND newer.at <= %(before)s
)
"""
_WATERMARKS_AT = """
SELECT mark.publisher, latest.processed
FROM bookmarks_mark mark CROSS JOIN LATERAL (
    SELECT processed FROM bookmarks_sample
    WHERE mark_id = mark.id AND at <= %(at)s ORDER BY at DESC LIMIT 1
) latest
WHERE mark.position_id = %(position)s
"""


def take(*, now: datetime) -> int:
    """Store the watermarks of the marks that have changed; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(_TAKE, {"now": now})
        return int(cursor.rowcount)


def prune(*, now: datetime) -> int:
    """Delete watermark samples beyond the retention; return how many.

    Of each position, the last one before the limit stays.
    """
    with connection.cursor() as cursor:
        cursor.execute(_PRUNE, {"before": now - RETENTION})
        return int(cursor.rowcount)


def watermarks_at(*, position_id: int, at: datetime) -> dict[str, int]:
    """Return each publisher's watermark at this moment, by its last sample before it.

    What was settled between that sample and the moment is not included.
    """
    with connection.cursor() as cursor:
        cursor.execute(_WATERMARKS_AT, {"position": position_id, "at": at})
        return dict(cursor.fetchall())
