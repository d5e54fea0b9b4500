"""Store a single failure by one or two statements, without a merge.

Guards report most failures one by one. One statement stores the first failure of a
message, which needs no lock of another one. A message that is known is locked first;
then a second statement, which sees what others committed meanwhile, stores its failure,
or finds that it is stored. A problem that is new, and whatever else is unusual, takes
the way of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from apps.capture.intake import problem_row_inserts as problems
from apps.capture.intake import repeat_folding
from apps.capture.intake.new_message_rows import (
    BODY_COLUMNS,
    FAILURE_COLUMNS,
    POISON_COLUMNS,
    NewMessage,
    body_row,
    failure_row,
    needs_merge,
    poison_row,
)
from apps.capture.intake.occurrence import MOST, Occurrence
from apps.poison.states import REOPENED_BY_FAILURE
from poisonguard.fingerprint import VERSION as CLASSIFIER

# What the rows of a message take from each other, in the statement for a single one.
_REFERENCES = {"problem_id": "problem_id", "poison_id": "poison.id"}


def _names(columns: Iterable[str]) -> str:
    """List the columns for a captured failure's INSERT; ids come from sequences."""
    return ", ".join(name for name in columns if name != "id")


def _values(table: str, columns: Mapping[str, str]) -> str:
    """Write the SQL list of the values for a table's columns, but for its id.

    Each is a placeholder with its type, named after table and column; the ids of
    problem and poison refer to other rows of the statement.
    """
    return ", ".join(
        _REFERENCES.get(name, f"%({table}_{name})s::{kind}")
        for name, kind in columns.items()
        if name != "id"
    )


_INSERT_ONE = f"""
WITH topic AS (
    SELECT id FROM brokers_topic WHERE id = %(poison_topic_id)s FOR KEY SHARE
), problem AS (
    SELECT problem.id AS problem_id FROM topic, poison_problem problem
    WHERE problem.topic_id = topic.id AND consumer_group = %(poison_consumer_group)s
      AND fingerprint = %(fingerprint)s AND version = %(version)s
), poison AS (
    INSERT INTO poison_poison ({_names(POISON_COLUMNS)})
    SELECT {_values("poison", POISON_COLUMNS)} FROM problem
    WHERE NOT EXISTS (SELECT FROM poison_poison WHERE identity = %(poison_identity)s)
      AND NOT EXISTS (SELECT FROM poison_alias WHERE identity = %(poison_identity)s)
    ON CONFLICT (identity, reuse) DO NOTHING
    RETURNING id, problem_id
), body AS (
    INSERT INTO poison_body ({_names(BODY_COLUMNS)})
    SELECT {_values("body", BODY_COLUMNS)} FROM poison
), failure AS (
    INSERT INTO poison_failure ({_names(FAILURE_COLUMNS)})
    SELECT {_values("failure", FAILURE_COLUMNS)} FROM poison
), spanned AS (
    UPDATE poison_problem
    SET first_seen = least(first_seen, %(failure_failed_at)s),
        last_seen = greatest(last_seen, %(failure_failed_at)s)
    FROM poison WHERE poison_problem.id = poison.problem_id
), captured AS (
    DELETE FROM capture_oversize_message USING poison
    WHERE capture_oversize_message.identity = %(poison_identity)s
)
SELECT id FROM poison
"""  # noqa: S608 - made of our own names


# A failure may reopen a message that was sent: the merge judges that.
_LOCK = """
SELECT poison.id, problem.id
FROM poison_poison poison JOIN poison_problem problem
  ON problem.topic_id = %(poison_topic_id)s
 AND problem.consumer_group = %(poison_consumer_group)s
 AND problem.fingerprint = %(fingerprint)s AND problem.version = %(version)s
WHERE poison.identity = %(poison_identity)s AND poison.digest = %(poison_digest)s
  AND poison.state <> ALL(%(reopened)s)
FOR NO KEY UPDATE OF poison
"""

_REPORT = ", ".join(
    f"%(failure_{name})s::{kind} AS {name}"
    for name, kind in FAILURE_COLUMNS.items()
    if name not in {"id", "is_first", "poison_id", "problem_id"}
)
_INSERTED = [name for name in FAILURE_COLUMNS if name not in {"id", "is_first"}]

_BUCKET = repeat_folding.BUCKET.replace("report_id", "%(failure_report_id)s")

# Counts, folds and notes the failure as a merge does: see `merge` and `repeat_folding`.
_STORE_AGAIN = f"""
WITH report AS (
    SELECT %(poison)s::int8 AS poison_id, %(problem)s::int8 AS problem_id,
           date_trunc('minute', %(failure_failed_at)s::timestamptz) AS minute,
           {_BUCKET} AS bucket,
           {_REPORT}
), duplicate AS (
    SELECT stored.suspected FROM report JOIN poison_failure stored
    ON stored.report_id = report.report_id AND stored.poison_id = report.poison_id
    UNION ALL
    SELECT false FROM report JOIN poison_folded_reports folded
    ON folded.poison_id = report.poison_id AND folded.bucket = report.bucket
    WHERE report.report_id = ANY(folded.reports)
), same AS (
    SELECT count(*) > 0 AS has_one,
           min(id) FILTER (WHERE folds) AS last
    FROM report kind, poison_failure failure WHERE {repeat_folding.SAME_KIND}
), judged AS (
    SELECT known.failures >= {repeat_folding.MOST_SINGLE} AND %(may_fold)s AND has_one
           AS repeats, last, known.last_failed_at <= report.failed_at AS is_newest
    FROM poison_poison known, report, same
    WHERE known.id = report.poison_id AND NOT EXISTS (SELECT FROM duplicate)
), inserted AS (
    INSERT INTO poison_failure ({", ".join(_INSERTED)}, folds,
                                last_failed_at)
    SELECT {", ".join(f"report.{name}" for name in _INSERTED)},
           repeats, CASE WHEN repeats THEN failed_at END
    FROM report, judged WHERE NOT repeats OR last IS NULL
), target AS (
    SELECT report.*, stored.id, stored.last_failed_at <= report.failed_at AS is_older,
           1 AS number, greatest(report.attempts, 1)::int8 AS sum
    FROM report, judged, poison_failure stored
    WHERE repeats AND stored.day = report.day AND stored.id = last
), folded AS ({repeat_folding.FOLD_INTO_TARGET}
), buckets AS (
    SELECT poison_id, bucket, ARRAY[report_id] AS reports FROM target
), {repeat_folding.KEEP_REPORTS}, counted AS (
    UPDATE poison_poison known SET failures = known.failures + 1,
        attempts = least(known.attempts::int8 + report.attempts, %(most)s),
        crashes = least(known.crashes::int8 + report.crashes, %(most)s),
        first_failed_at = least(known.first_failed_at, report.first_failed_at),
        last_failed_at = greatest(known.last_failed_at, report.failed_at),
        problem_id = CASE WHEN is_newest THEN report.problem_id
                     ELSE known.problem_id END,
        cause = CASE WHEN is_newest THEN report.cause ELSE known.cause END,
        error_type = CASE WHEN is_newest THEN report.error_type
                     ELSE known.error_type END,
        error_message = CASE WHEN is_newest THEN %(poison_error_message)s
                        ELSE known.error_message END,
        suspected = false
    FROM report, judged WHERE known.id = report.poison_id
), spanned AS (
    UPDATE poison_problem SET first_seen = least(first_seen, report.failed_at),
           last_seen = greatest(last_seen, report.failed_at)
    FROM report, judged WHERE poison_problem.id = report.problem_id
), captured AS (
    DELETE FROM capture_oversize_message WHERE identity = %(poison_identity)s
)
SELECT EXISTS (SELECT FROM judged), coalesce(bool_or(suspected), false) FROM duplicate
"""  # noqa: S608 - made of our own names


def write(occurrence: Occurrence, *, now: datetime) -> tuple[str, int] | None:
    """Store a failure; return (status, poison id), or None if it must be merged.

    It stores what `merge` would. Within a transaction, it is a part of that.
    """
    if needs_merge(occurrence) or occurrence.queue:
        return None
    values = _values_of(occurrence, now=now)
    # A statement by itself is a transaction. In one, an error must not end that.
    whole = transaction.atomic() if connection.in_atomic_block else nullcontext()
    with whole, connection.cursor() as cursor:
        cursor.execute(_INSERT_ONE, values)
        inserted = cursor.fetchone()
    if inserted:
        return "created", inserted[0]
    with transaction.atomic(), connection.cursor() as cursor:
        return _write_again(cursor, values)


def _write_again(
    cursor: CursorWrapper, values: dict[str, Any]
) -> tuple[str, int] | None:
    """Store a failure of a message that has failed before, inside a transaction.

    Returns (status, poison id), or None if the failure must be merged. No topic that
    has a message is removed: it need not be locked.
    """
    cursor.execute(_LOCK, values)
    locked = cursor.fetchone()
    if locked is None:
        return None
    poison, problem = locked
    cursor.execute(_STORE_AGAIN, {**values, "poison": poison, "problem": problem})
    is_stored, clears = cursor.fetchone()
    if clears:
        return None
    return ("updated" if is_stored else "duplicate"), poison


def _values_of(occurrence: Occurrence, *, now: datetime) -> dict[str, Any]:
    """Return a failure's values as the parameters of the statements."""
    new = NewMessage(place=0, poison=0, problem=0, failure=0, occurrence=occurrence)
    day = now.date()
    rows = {
        "poison": (POISON_COLUMNS, poison_row(new, now)),
        "body": (BODY_COLUMNS, body_row(new, day)),
        "failure": (FAILURE_COLUMNS, failure_row(new, now, day)),
    }
    _, _, fingerprint = problems.key_of(occurrence)
    may_fold = (
        occurrence.failed_at_claimed is None
        and occurrence.attempts <= repeat_folding.MOST_ATTEMPTS
    )
    return {
        **{
            f"{table}_{name}": value
            for table, (columns, row) in rows.items()
            for name, value in zip(columns, row, strict=True)
        },
        "fingerprint": fingerprint,
        "version": CLASSIFIER,
        "reopened": REOPENED_BY_FAILURE,
        "may_fold": may_fold,
        "most": MOST,
        "day": day,
        "now": now,
    }
