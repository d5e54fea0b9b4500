"""Fold the repeats of a failure: one row stands for those of a minute.

A message whose consumer tries it again and again may fail a million times. The first
hundred failures are stored one by one. Of those beyond, a minute stores at most two of
a kind: the first, and a second one that stands for all others (`times`) and takes the
texts of the last. Failures are of a kind if nothing that is counted or searched tells
them apart. The ids of the reports without a row are kept for a day.

All of this happens in a merge, which holds the messages: it is a part of its steps.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.backends.utils import CursorWrapper

# Failures of a message that are stored one by one.
MOST_SINGLE = 100
# Ids in a row: with more, more would be rewritten for each that is added.
MOST_IN_A_ROW = 50
LIVES = timedelta(days=1)
# A report with more attempts has a row of its own: the sum would not fit.
MOST_ATTEMPTS = 1_000

# A bucket by the end of the id, which is random in all versions that guards use. Few
# ids of a message are read for each report, and few rows are written by each batch.
BUCKET = "(('x' || right(report_id::text, 4))::bit(16)::int & 1023)::smallint"

# OFFSET 0 makes Postgres look each report up by the index.
_FIND_DUPLICATES = f"""
UPDATE incoming SET status = 'duplicate' FROM (
    SELECT again.ord FROM (
        SELECT ord, poison_id, report_id, {BUCKET} AS bucket FROM incoming
        WHERE poison_id = ANY(%(frequent)s)) again
    CROSS JOIN LATERAL (
        SELECT FROM (SELECT reports FROM poison_folded_reports folded
                     WHERE folded.poison_id = again.poison_id
                       AND folded.bucket = again.bucket OFFSET 0) same
        WHERE again.report_id = ANY(same.reports) LIMIT 1) stored
) known
WHERE known.ord = incoming.ord AND incoming.status IS NULL
"""  # noqa: S608 - all of it is ours

_KIND = (
    "poison_id, problem_id, cause, client_name, sub_id, host, handler_version, minute"
)
# The stored failures of a kind that were captured on the same day.
SAME_KIND = """
failure.day = %(day)s AND failure.poison_id = kind.poison_id
AND failure.failed_at >= kind.minute
AND failure.failed_at < kind.minute + interval '1 minute'
AND failure.problem_id = kind.problem_id AND failure.cause = kind.cause
AND failure.client_name = kind.client_name
AND failure.sub_id IS NOT DISTINCT FROM kind.sub_id
AND failure.host IS NOT DISTINCT FROM kind.host
AND failure.handler_version IS NOT DISTINCT FROM kind.handler_version
"""

# A redriven message tells by its failure what became of its send; a suspected failure
# may be cleared; a time that was not believed is kept; and a dead letter comes again
# after more than a day, if its lane was away. These have rows of their own.
_CHOOSE = f"""
WITH numbered AS (
    SELECT incoming.*, date_trunc('minute', incoming.failed_at) AS minute,
           known.failures
           + row_number() OVER (PARTITION BY poison_id ORDER BY ord) AS n
    FROM incoming JOIN poison_poison known ON known.id = incoming.poison_id
    WHERE known.id = ANY(%(frequent)s) AND status IN ('created', 'updated')
), repeats AS (
    SELECT ord, dense_rank() OVER (ORDER BY {_KIND}) AS number,
           row_number() OVER (PARTITION BY {_KIND} ORDER BY ord) AS turn, {_KIND}
    FROM numbered
    WHERE n > {MOST_SINGLE} AND redrive IS NULL AND NOT suspected AND queue = ''
      AND failed_at_claimed IS NULL AND attempts <= {MOST_ATTEMPTS}
), stored AS (
    SELECT kind.number, rows.has_one, rows.has_last
    FROM (SELECT DISTINCT ON (number) number, {_KIND} FROM repeats) kind
    CROSS JOIN LATERAL (
        SELECT count(*) > 0 AS has_one, coalesce(bool_or(folds), false) AS has_last
        FROM poison_failure failure WHERE {SAME_KIND}) rows
), later AS (
    SELECT ord, number, turn - (NOT has_one)::int AS turn, has_last
    FROM repeats JOIN stored USING (number)
)
UPDATE incoming SET kind = later.number, is_last = (turn = 1 AND NOT has_last),
       is_folded = (turn > 1 OR has_last)
FROM later WHERE incoming.ord = later.ord AND turn > 0
"""  # noqa: S608 - all of it is ours

_TEXTS = (
    *("error_type", "error_message", "traceback", "failures", "crashes"),
    *("dequeue_count", "dequeue_count_source", "first_failed_at", "bookmark"),
)
# An equal text is not written again.
_SET_TEXTS = ",\n    ".join(
    f"{name} = CASE WHEN is_older AND failure.{name} IS DISTINCT FROM target.{name}"
    f" THEN target.{name} ELSE failure.{name} END"
    for name in _TEXTS
)

# Needs a `target`: the rows to change, with what to change in them.
# `attempts` of a row that stands for several is their sum, each at least one: so the
# nightly report can tell the retries, which are the attempts beyond the first.
FOLD_INTO_TARGET = f"""
UPDATE poison_failure failure SET
    times = failure.times + target.number,
    attempts = least(greatest(failure.attempts, failure.times) + target.sum, %(most)s),
    {_SET_TEXTS},
    last_failed_at = greatest(failure.last_failed_at, target.failed_at),
    captured_at = %(now)s, captured_xid = pg_current_xact_id()
FROM target WHERE failure.day = target.day AND failure.id = target.id
"""  # noqa: S608 - all of it is ours

_FOLD = f"""
WITH kinds AS (
    SELECT kind, count(*) AS number, sum(greatest(attempts, 1)) AS attempts
    FROM incoming WHERE is_folded GROUP BY kind
), newest AS (
    SELECT DISTINCT ON (kind) *, date_trunc('minute', failed_at) AS minute
    FROM incoming WHERE is_folded ORDER BY kind, failed_at DESC, ord DESC
), target AS (
    SELECT last.day, last.id, last.is_older, kinds.number, kinds.attempts AS sum,
           kind.failed_at, {", ".join(f"kind.{name}" for name in _TEXTS)}
    FROM newest kind JOIN kinds ON kinds.kind = kind.kind CROSS JOIN LATERAL (
        SELECT day, id, last_failed_at <= kind.failed_at AS is_older
        FROM poison_failure failure
        WHERE {SAME_KIND} AND folds ORDER BY id LIMIT 1) last
)
{FOLD_INTO_TARGET}
"""  # noqa: S608 - all of it is ours

# Needs `buckets`: what to add to each. The last row of a bucket is filled first.
KEEP_REPORTS = f"""
placed AS (
    SELECT buckets.*, last.part, last.number FROM buckets LEFT JOIN LATERAL (
        SELECT part, cardinality(folded.reports) AS number
        FROM poison_folded_reports folded
        WHERE folded.poison_id = buckets.poison_id AND folded.bucket = buckets.bucket
        ORDER BY part DESC LIMIT 1) last ON true
), added AS (
    UPDATE poison_folded_reports folded SET day = %(day)s,
           reports = folded.reports || placed.reports
    FROM placed
    WHERE folded.poison_id = placed.poison_id AND folded.bucket = placed.bucket
      AND folded.part = placed.part AND placed.number < {MOST_IN_A_ROW}
), begun AS (
    INSERT INTO poison_folded_reports (poison_id, bucket, part, day, reports)
    SELECT poison_id, bucket, coalesce(part + 1, 0), %(day)s, reports FROM placed
    WHERE part IS NULL OR number >= {MOST_IN_A_ROW}
)
"""  # noqa: S608 - all of it is ours

_KEEP_REPORTS = f"""
WITH buckets AS (
    SELECT poison_id, {BUCKET} AS bucket, array_agg(report_id) AS reports
    FROM incoming WHERE is_folded GROUP BY 1, 2
), {KEEP_REPORTS}
SELECT
"""  # noqa: S608 - all of it is ours


def find_duplicates(cursor: CursorWrapper, values: dict[str, Any]) -> int:
    """Mark failure reports that were folded before; return how many.

    `frequent` are the messages that may have such reports.
    """
    cursor.execute(_FIND_DUPLICATES, values)
    return int(cursor.rowcount)


def choose(cursor: CursorWrapper, values: dict[str, Any]) -> bool:
    """Mark repeated new failures that a row of a like failure will stand for.

    Returns whether any failure was marked, also one that will stand for others.
    """
    cursor.execute(_CHOOSE, values)
    return int(cursor.rowcount) > 0


def fold(cursor: CursorWrapper, values: dict[str, Any]) -> None:
    """Count repeated failures in the rows that stand for them; store the report ids."""
    cursor.execute(_FOLD, values)
    cursor.execute(_KEEP_REPORTS, values)


# A merge that adds to a row holds it, and then it is not old any more.
_PRUNE = """
DELETE FROM poison_folded_reports WHERE (poison_id, bucket, part) IN (
    SELECT poison_id, bucket, part FROM poison_folded_reports WHERE day < %s
    FOR UPDATE SKIP LOCKED)
"""


def prune(*, now: datetime) -> None:
    """Delete the ids of failure reports that were folded more than a day ago."""
    with connection.cursor() as cursor:
        cursor.execute(_PRUNE, [(now - LIVES).date()])
