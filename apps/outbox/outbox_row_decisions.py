"""Read the rows of an outbox in the producer's database, and decide about them.

Other programs write these rows: every column is read as text, and cut. A text may even
be none, and is read by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.rows import dict_row

from apps.core.errors import Refused, Unavailable
from apps.core.postgres_connections import give_back_session
from apps.outbox.database_error_texts import ErrorTexts
from apps.outbox.models import Outbox
from apps.outbox.producer_database_answer_limits import limit_answers
from apps.outbox.producer_database_url import ProducerDatabase
from poisonguard.outbox.sweeping.table_names import Tables

PURPOSE = "outbox pages"
READ_MILLISECONDS = "2000"
# Of all that is asked in one transaction.
ANSWER_SECONDS = 10.0
TEXT_LIMIT = 1_000
# Numbers of rows are bigints.
MOST_ROW_ID = 2**63 - 1


class RowState(StrEnum):
    """What has become of a row."""

    WAITING = "waiting"
    SENT = "sent"
    DUPLICATE = "duplicate"
    QUARANTINED = "quarantined"
    DROPPED = "dropped"


_CONDITIONS = {
    RowState.WAITING: "{waiting}",
    RowState.SENT: "entry.sent_at IS NOT NULL",
    RowState.DUPLICATE: "entry.duplicate_of IS NOT NULL AND entry.sent_at IS NULL",
    RowState.QUARANTINED: (
        "entry.quarantined_at IS NOT NULL AND entry.dropped_at IS NULL"
    ),
    RowState.DROPPED: (
        "entry.quarantined_at IS NOT NULL AND entry.dropped_at IS NOT NULL"
    ),
}
STATE = """
CASE WHEN entry.sent_at IS NOT NULL THEN 'sent'
     WHEN entry.duplicate_of IS NOT NULL THEN 'duplicate'
     WHEN entry.quarantined_at IS NULL THEN 'waiting'
     WHEN entry.dropped_at IS NULL THEN 'quarantined' ELSE 'dropped' END
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFilter:
    """Rows in a state, with a message id or a topic; newest first, before a row id.

    Rows of `hidden_topics` are none of the reader's.
    """

    state: RowState | None = None
    message_id: str = ""
    topic: str = ""
    before: int | None = None
    hidden_topics: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerRow:
    """A row as pages and API show it; texts are cut, "" stands for NULL."""

    row_id: int
    state: str
    producer: str
    message_id: str
    topic: str
    key: str
    size: int
    attempts: int
    created_at: datetime | None
    due_at: datetime | None
    sent_at: datetime | None
    duplicate_of: int | None
    quarantined_at: datetime | None
    cause: str
    reason: str
    writer_user: str
    writer_application: str
    writer_address: str
    writer_transaction: str
    written_at: datetime | None


@dataclass(frozen=True, slots=True)
class Quarantine:
    """When a row was quarantined, and the id by which it is recognised."""

    quarantined_at: datetime
    message_id: str


def _bytes_of(text: str) -> str:
    """Write SQL for the bytes, in UTF-8, that a text column of an outbox row has.

    In a database of SQL_ASCII they may be no text: Postgres would refuse the whole
    answer.
    """
    encoding = (
        "CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END"
    )
    return f"convert_to({text}, {encoding})"


def _cut(column: str) -> str:
    return f"coalesce(left(entry.{column}::text, {TEXT_LIMIT}), '')"


def _text(column: str) -> str:
    return _bytes_of(_cut(column))


def _moment(column: str, condition: str = "true") -> str:
    # Python has no infinity, and no year 10,000.
    return (
        f"CASE WHEN entry.{column} BETWEEN '1000-01-01' AND '9000-01-01'"
        f" AND {condition} THEN entry.{column} END AS {column}"
    )


# By its bytes: not every database has the letters of every name.
_TOPIC = _bytes_of("coalesce(entry.topic::text, '')")
_IS_VISIBLE = f"""(
    cardinality(%(hidden_topics)s::bytea[]) = 0
    OR {_TOPIC} <> ALL (%(hidden_topics)s::bytea[])
)"""
_ROWS = f"""
SELECT entry.row_id::bigint, {STATE} AS state,
    {_text("producer")} AS producer, {_text("message_id")} AS message_id,
    {_text("topic")} AS topic, {_text("key")} AS key,
    coalesce(octet_length(entry.body), 0)::bigint AS size,
    coalesce(entry.attempts, 0)::bigint AS attempts,
    {_moment("created_at")}, {_moment("due_at", _CONDITIONS[RowState.WAITING])},
    {_moment("sent_at")},
    entry.duplicate_of::bigint, {_moment("quarantined_at")},
    {_text("quarantine_cause")} AS cause, {_text("quarantine_reason")} AS reason,
    {_text("writer_user")} AS writer_user,
    {_text("writer_application")} AS writer_application,
    {_bytes_of(f"split_part({_cut('writer_address')}, '/', 1)")} AS writer_address,
    {_text("writer_transaction")} AS writer_transaction, {_moment("written_at")}
FROM {{outbox}} AS entry
WHERE {{condition}}
  AND (%(message_id)s = '' OR entry.message_id::text = %(message_id)s)
  AND (%(topic)s = '' OR entry.topic::text = %(topic)s)
  AND (%(before)s::bigint IS NULL OR entry.row_id < %(before)s)
  AND {_IS_VISIBLE}
ORDER BY entry.row_id DESC LIMIT %(most)s
"""  # noqa: S608 - made of constants
_EXISTS = f"""
SELECT FROM {{outbox}} AS entry WHERE entry.row_id = %(row_id)s AND {_IS_VISIBLE}
"""
MESSAGE_ID = _cut("message_id")
_QUARANTINED = f"""
quarantined AS (
    SELECT entry.row_id,
        greatest(least(entry.quarantined_at, now()), 'epoch') AS quarantined_at,
        {MESSAGE_ID} AS message_id
    FROM {{outbox}} AS entry
    WHERE entry.row_id = %(row_id)s
      AND entry.quarantined_at IS NOT NULL AND entry.dropped_at IS NULL
      AND {_IS_VISIBLE}
    FOR UPDATE
)
"""  # noqa: S608 - made of constants
RELEASE = f"""
WITH {_QUARANTINED}
UPDATE {{outbox}} AS entry
SET quarantined_at = NULL, released_at = now(), reported_at = NULL,
    claim_token = NULL, claimed_until = NULL, due_at = now()
FROM quarantined
WHERE entry.row_id = quarantined.row_id
  AND entry.sent_at IS NULL AND entry.duplicate_of IS NULL
  AND quarantined.quarantined_at <= coalesce(%(until)s, 'infinity'::timestamptz)
  AND quarantined.message_id = coalesce(%(message_id)s, quarantined.message_id)
RETURNING quarantined.quarantined_at, {_bytes_of("quarantined.message_id")}
"""  # noqa: S608 - made of constants
_DROP = f"""
WITH {_QUARANTINED}
UPDATE {{outbox}} AS entry SET dropped_at = now()
FROM quarantined WHERE entry.row_id = quarantined.row_id
RETURNING quarantined.quarantined_at, {_bytes_of("quarantined.message_id")}
"""  # noqa: S608


def find(outbox: Outbox, filters: RowFilter, *, most: int) -> list[ProducerRow]:
    """List rows of a producer's outbox table, the newest first; may be Unavailable."""
    condition = "true" if filters.state is None else _CONDITIONS[filters.state]
    with session(outbox) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        statement = _ROWS.replace("{condition}", condition)
        cursor.execute(
            fill_table_names(outbox, statement),
            {
                "message_id": filters.message_id,
                "topic": filters.topic,
                "before": filters.before and min(filters.before, MOST_ROW_ID),
                "hidden_topics": _encoded(filters.hidden_topics),
                "most": most,
            },
        )
        return [ProducerRow(**_readable(row)) for row in cursor]


def one(
    outbox: Outbox, row_id: int, hidden_topics: tuple[str, ...] = ()
) -> ProducerRow | None:
    """Read one row of a producer's outbox table by its id; None without one."""
    filters = RowFilter(before=row_id + 1, hidden_topics=hidden_topics)
    rows = find(outbox, filters, most=1)
    return rows[0] if rows and rows[0].row_id == row_id else None


def exists(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    row_id: int,
    hidden_topics: Sequence[str] = (),
) -> bool:
    """Tell whether an outbox has this row, of a topic that is not hidden."""
    values = {"row_id": row_id, "hidden_topics": _encoded(hidden_topics)}
    cursor = connection.execute(fill_table_names(outbox, _EXISTS), values)
    return cursor.fetchone() is not None


def release(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    row_id: int,
    hidden_topics: Sequence[str] = (),
) -> Quarantine | None:
    """Set a quarantined outbox row to be sent; return its `Quarantine`, or None."""
    return _decide(outbox, connection, RELEASE, row_id, hidden_topics)


def drop(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    row_id: int,
    hidden_topics: Sequence[str] = (),
) -> Quarantine | None:
    """Set a quarantined outbox row to dropped; return its `Quarantine`, or None."""
    return _decide(outbox, connection, _DROP, row_id, hidden_topics)


def _decide(
    outbox: Outbox,
    connection: psycopg.Connection[Any],
    statement: str,
    row_id: int,
    hidden_topics: Sequence[str],
) -> Quarantine | None:
    values = {
        "row_id": row_id,
        "until": None,
        "message_id": None,
        "hidden_topics": _encoded(hidden_topics),
    }
    row = connection.execute(fill_table_names(outbox, statement), values).fetchone()
    if row is None:
        return None
    quarantined_at, message_id = row
    return Quarantine(quarantined_at, message_id.decode("utf-8", "replace"))


def _encoded(names: Iterable[str]) -> list[bytes]:
    return [name.encode() for name in names]


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the byte texts of an outbox row; a sign stands for what is no UTF-8."""
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in row.items()
    }


@contextmanager
def session(
    outbox: Outbox, *, most_bytes: int | None = None
) -> Iterator[psycopg.Connection[Any]]:
    """Connect to an outbox's database for one transaction, committed at the end.

    `most_bytes` of answers, if not those of a page. Raises Unavailable where the
    database is away, or an answer takes longer than two seconds, and Refused where its
    tables are not as they should be.
    """
    give_back_session()
    database, texts = ProducerDatabase.read(outbox.url), ErrorTexts(outbox.url)
    settings = {
        "statement_timeout": READ_MILLISECONDS,
        "lock_timeout": READ_MILLISECONDS,
        "datestyle": "ISO",  # psycopg reads no other
    }
    try:
        parameters = database.parameters(purpose=PURPOSE, settings=settings)
    except Unavailable as away:
        raise Unavailable(texts.clean(str(away))) from away
    try:
        connection = psycopg.connect(**parameters)
        limits = limit_answers(
            connection, seconds=ANSWER_SECONDS, most_bytes=most_bytes
        )
        # psycopg closes none whose commit fails. The commit, too, may wait for long.
        with closing(connection), limits as require_limits, connection:
            yield connection
            require_limits()
    except psycopg.ProgrammingError as error:
        raise Refused(
            f"The tables of the outbox {outbox.name} are not as they should be; check"
            f" them: {texts.clean(str(error))}"
        ) from error
    except psycopg.Error as error:
        raise Unavailable(
            f"The database of the outbox {outbox.name} did not answer:"
            f" {texts.clean(str(error))}"
        ) from error


def fill_table_names(outbox: Outbox, statement: str) -> str:
    """Fill the names of an outbox's tables into a SQL statement."""
    return Tables(outbox.schema or None).fill(statement)
