"""The facts in Postgres, and the SQL statements that read them in parallel.

A piece of a table is a leaf partition that may have days of the window, or a range of
its blocks. A statement reads one piece, or several small ones together. Together they
read each row exactly once, because all run in the same snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from string import Template

from spark.lake_schemas import SCHEMAS, LakeKind

# Capture accepts clocks up to 30 days behind, and up to 5 minutes ahead.
CAPTURED_BEFORE = timedelta(days=1)
CAPTURED_AFTER = timedelta(days=31)
# 160 MB: a few seconds of reading, and little to repeat when a task fails.
BLOCKS = 20_000
# Each statement costs a connection and a task: join pieces smaller than 20 MB.
PIECES_OF_A_STATEMENT = 8
_SNAPSHOT = re.compile(r"[0-9A-F]+-[0-9A-F]+-[0-9]+")

Query = Callable[[str], list[tuple[object, ...]]]

# A failure belongs to the topic and consumer group of its problem: where it failed.
# Some stand for several of the same minute (`times`); their attempts are a sum.
_FAILURES = Template("""
SELECT (fact.failed_at AT TIME ZONE 'UTC')::date AS day, fact.failed_at AS at,
       topic.name AS topic, problem.consumer_group, problem.id AS problem,
       fact.poison_id AS poison, fact.cause::text, fact.is_first, fact.attempts,
       fact.times
FROM $table fact
JOIN poison_problem problem ON problem.id = fact.problem_id
JOIN brokers_topic topic ON topic.id = problem.topic_id
WHERE fact.failed_at >= '$since' AND fact.failed_at < '$until' AND $place
""")

_COUNTERS = Template("""
SELECT (fact.minute AT TIME ZONE 'UTC')::date AS day, fact.minute AS at,
       topic.name AS topic, fact.consumer_group, fact.client_name, fact.source::text,
       fact.handled, fact.failed, fact.skipped, fact.retried,
       fact.duration_ms_hist::text
FROM $table fact JOIN brokers_topic topic ON topic.id = fact.topic_id
WHERE fact.minute >= '$since' AND fact.minute < '$until' AND $place
""")

_DECISIONS = Template("""
SELECT (fact.at AT TIME ZONE 'UTC')::date AS day, fact.at,
       topic.name AS topic, poison.consumer_group, poison.problem_id AS problem,
       '$what'::text AS what
FROM ($source) fact
JOIN poison_poison poison ON poison.id = fact.poison_id
JOIN brokers_topic topic ON topic.id = poison.topic_id
WHERE fact.at >= '$since' AND fact.at < '$until'
""")

_DECISION_SOURCES = {
    "redriven": "SELECT poison_id, sent_at AS at FROM poison_redrive",
    "confirmed": "SELECT poison_id, confirmed_at AS at FROM poison_redrive",
    "recurred": """
        SELECT poison_id, answered_at AS at FROM poison_redrive
        WHERE outcome = 'recurred'
    """,
    "dropped": """
        SELECT item.poison_id, operation.finished_at AS at
        FROM triage_selected_item item
        JOIN triage_operation operation ON operation.id = item.operation_id
        WHERE operation.verb = 'drop' AND item.number < operation.judged
          AND NOT EXISTS (SELECT FROM triage_skipped_item skip
                          WHERE skip.operation_id = item.operation_id
                            AND skip.number = item.number)
    """,
}

_CALLS = Template("""
SELECT (fact.minute AT TIME ZONE 'UTC')::date AS day, fact.minute AS at,
       topic.name AS topic, endpoint.name AS endpoint,
       fact.succeeded_at_first, fact.succeeded_later, fact.failed
FROM redelivery_call_count fact
JOIN redelivery_endpoint endpoint ON endpoint.id = fact.endpoint_id
JOIN brokers_topic topic ON topic.id = endpoint.topic_id
WHERE fact.minute >= '$since' AND fact.minute < '$until'
""")

# A delivery counts on the day on which it ended. Clocks differ: none took less than 0.
_DELIVERIES = Template("""
SELECT (fact.finished_at AT TIME ZONE 'UTC')::date AS day, fact.finished_at AS at,
       topic.name AS topic, endpoint.name AS endpoint, fact.state::text,
       fact.cause::text, fact.attempts,
       greatest(floor(extract(epoch FROM fact.finished_at - fact.accepted_at) * 1000),
                0)::bigint AS took_ms
FROM $table fact
JOIN redelivery_endpoint endpoint ON endpoint.id = fact.endpoint_id
JOIN brokers_topic topic ON topic.id = endpoint.topic_id
WHERE fact.finished_at >= '$since' AND fact.finished_at < '$until' AND $place
""")

# What waited at the end of each day, ends of days in hours: no session's time zone
# changes their length. Counted here, because few things wait or very many do.
_BACKLOGS = Template("""
SELECT (midnight AT TIME ZONE 'UTC')::date - 1 AS day,
       midnight - interval '1 microsecond' AS at,
       topic.name AS topic, endpoint.name AS endpoint, count(*) AS waiting
FROM generate_series('$since'::timestamptz + interval '24 hours',
                     '$until'::timestamptz, interval '24 hours') AS midnight
JOIN redelivery_delivery fact ON fact.accepted_at < midnight
    AND (fact.finished_at IS NULL OR fact.finished_at >= midnight)
JOIN redelivery_endpoint endpoint ON endpoint.id = fact.endpoint_id
JOIN brokers_topic topic ON topic.id = endpoint.topic_id
GROUP BY midnight, topic.name, endpoint.name
""")

_WHOLE = {LakeKind.CALLS: _CALLS, LakeKind.BACKLOGS: _BACKLOGS}

_LEAVES = Template("""
WITH leaf AS (
    SELECT relid, pg_get_expr(relpartbound, relid) AS bound
    FROM pg_partition_tree('$table') JOIN pg_class ON oid = relid WHERE isleaf
    UNION ALL -- a table without partitions is its only piece
    SELECT oid, NULL FROM pg_class WHERE oid = '$table'::regclass AND relkind = 'r'
), bounded AS (
    SELECT relid, substring(bound FROM 'FROM \\(''([^'']+)''\\)')::date AS first,
           substring(bound FROM 'TO \\(''([^'']+)''\\)')::date AS until
    FROM leaf
)
SELECT relid::regclass::text AS name,
       pg_relation_size(relid) / current_setting('block_size')::int AS blocks
FROM bounded
WHERE (first <= '$last' AND until > '$first') IS NOT FALSE -- null is no bound
ORDER BY name
""")

_TABLES = {
    LakeKind.FAILURES: ("poison_failure", _FAILURES),
    LakeKind.COUNTERS: ("capture_counter", _COUNTERS),
    LakeKind.DELIVERIES: ("redelivery_delivery", _DELIVERIES),
}

# The columns as Postgres returns them: jsonb is text here.
COLUMNS = {
    **SCHEMAS,
    LakeKind.COUNTERS: SCHEMAS[LakeKind.COUNTERS].replace(
        "map<string, bigint>", "string"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FactWindow:
    """The UTC days to read, both included, and the exported snapshot to read in."""

    first: date
    last: date
    snapshot: str

    def __post_init__(self) -> None:
        if not _SNAPSHOT.fullmatch(self.snapshot):
            raise ValueError(f"{self.snapshot} is not the name of a snapshot")
        if self.first > self.last:
            raise ValueError(f"{self.first} comes after {self.last}")

    @property
    def bounds(self) -> dict[str, str]:
        """Return the first moment of a window of facts, and the first one after it."""
        until = self.last + timedelta(days=1)
        return {"since": f"{self.first} 00:00+00", "until": f"{until} 00:00+00"}


def statements(
    kind: LakeKind, window: FactWindow, query: Query, *, blocks: int = BLOCKS
) -> list[str]:
    """List the SQL statements that read one kind of a report's facts."""
    if kind is LakeKind.DECISIONS:
        return [
            _DECISIONS.substitute(window.bounds, what=what, source=source)
            for what, source in _DECISION_SOURCES.items()
        ]
    if kind in _WHOLE:
        return [_WHOLE[kind].substitute(window.bounds)]
    table, template = _TABLES[kind]
    pieces = (
        (template.substitute(window.bounds, table=leaf, place=place), size)
        for leaf, leaf_size in _leaves(table, window, query)
        for place, size in _block_ranges(leaf_size, blocks)
    )
    return list(_join_small(pieces, most=blocks // PIECES_OF_A_STATEMENT))


def _leaves(table: str, window: FactWindow, query: Query) -> Sequence[tuple[str, int]]:
    """List the partitions of a table that may have facts, with their blocks."""
    statement = _LEAVES.substitute(
        table=table,
        first=window.first - CAPTURED_BEFORE,
        last=window.last + CAPTURED_AFTER,
    )
    return [(str(name), int(str(size))) for name, size in query(statement)]


def _block_ranges(size: int, blocks: int) -> Iterator[tuple[str, int]]:
    """Cut a table into ranges of `blocks`; the last has no end, as tables grow."""
    for start in range(0, size, blocks):
        lower = f"fact.ctid >= '({start},0)'"
        end = start + blocks
        if end >= size:
            yield lower, size - start
        else:
            yield f"{lower} AND fact.ctid < '({end},0)'", blocks


def _join_small(pieces: Iterable[tuple[str, int]], *, most: int) -> Iterator[str]:
    """Join small pieces of a table into statements of at most `most` blocks."""
    statements: list[str] = []
    total = 0
    for statement, size in pieces:
        if statements and total + size > most:
            yield "UNION ALL".join(statements)
            statements, total = [], 0
        statements.append(statement)
        total += size
    if statements:
        yield "UNION ALL".join(statements)
