"""Copy occurrences into a temporary table: `staged_occurrences_merge` stores them.

The table lasts as long as its session and is empty after each transaction. The merge
fills its further columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.backends.utils import CursorWrapper

from apps.capture.intake.occurrence import Occurrence
from apps.core.copy_rows import copy_rows
from apps.core.text_cleaning import one_line, storable
from poisonguard.fingerprint import VERSION as CLASSIFIER

_COLUMNS = {
    "ord": "int4",
    "report_id": "uuid",
    "topic_id": "int8",
    "consumer_group": "text",
    "bookmark": "bytea",
    "identity": "bytea",
    "client_name": "text",
    "sub_id": "text",
    "host": "text",
    "handler_version": "text",
    "message_id": "text",
    "content": "bytea",
    "digest": "bytea",
    "size": "int8",
    "headers": "bytea[]",
    "content_type": "text",
    "cause": "text",
    "error_type": "text",
    "error_line": "text",
    "error_message": "text",
    "traceback": "text",
    "fingerprint": "bytea",
    "version": "int2",
    "title": "text",
    "summary": "text",
    "inputs": "text[]",
    "attempts": "int4",
    "failures": "int4",
    "crashes": "int4",
    "dequeue_count": "int4",
    "dequeue_count_source": "text",
    "first_failed_at": "timestamptz",
    "failed_at": "timestamptz",
    "failed_at_claimed": "timestamptz",
    "redrive": "uuid",
    "publisher": "text",
    "seq": "int8",
    "suspected": "bool",
    "is_shared_at_once": "bool",
    "queue": "text",
    "place": "text",
    "delivery": "bytea",
}

_FLAGS = ("ambiguous", "is_last", "is_folded")

_STAGE = f"""
CREATE TEMP TABLE IF NOT EXISTS incoming (
    {", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())},
    problem_id int8, poison_id int8, status text, kind int8,
    {", ".join(f"{name} bool NOT NULL DEFAULT false" for name in _FLAGS)}
) ON COMMIT DELETE ROWS
"""


def stage(cursor: CursorWrapper, occurrences: Sequence[Occurrence]) -> None:
    """Replace the rows of the table `incoming` by these failures, in order."""
    cursor.execute(_STAGE)
    cursor.execute("DELETE FROM incoming")  # of an earlier merge in this transaction
    rows = (_row(order, occurrence) for order, occurrence in enumerate(occurrences))
    copy_rows(cursor, "incoming", _COLUMNS, rows)


def _row(order: int, o: Occurrence) -> Sequence[object]:
    """Return a failure as a row of `incoming`, in the order of its columns."""
    return (
        order,
        o.report_id,
        o.topic_id,
        o.consumer_group,
        o.bookmark,
        o.identity,
        o.client_name,
        o.sub_id,
        o.host,
        o.handler_version,
        o.message_id,
        o.body,
        o.digest,
        len(o.body),
        [part for header in o.headers for part in header],
        o.content_type,
        o.cause,
        o.error_type,
        one_line(o.error_message),
        o.error_message,
        o.traceback,
        o.fingerprint.digest,
        CLASSIFIER,
        storable(o.fingerprint.title),
        storable(o.fingerprint.summary),
        [storable(part) for part in o.fingerprint.inputs],
        o.attempts,
        o.failures,
        o.crashes,
        o.dequeue_count,
        o.dequeue_count_source,
        o.first_failed_at,
        o.failed_at,
        o.failed_at_claimed,
        o.redrive,
        o.publisher,
        o.seq,
        o.suspected,
        o.is_shared_at_once,
        o.queue,
        o.place,
        o.delivery,
    )
