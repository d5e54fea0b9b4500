"""Which facts there are in Postgres, and how their reading is split into statements.

A piece of a table is a leaf partition that can hold days of the window, or a range of
its blocks. A statement reads one piece, or some small ones together. All of them give
each row once, because all are read in the same snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from string import Template

from spark.schemas import SCHEMAS, Kind

# Clocks are believed up to 30 days before capture, and up to 5 minutes after it.
CAPTURED_BEFORE = timedelta(days=1)
CAPTURED_AFTER = timedelta(days=31)
# 160 MB: some seconds of reading, and little to do again when one fails.
BLOCKS = 20_000
# Each statement costs a connection and a task: less than 20 MB is not worth them.
PIECES_OF_A_STATEMENT = 8
_SNAPSHOT = re.compile(r"[0-9A-F]+-[0-9A-F]+-[0-9]+")

Query = Callable[[str], list[tuple[object, ...]]]

# A failure belongs to the topic and consumer group where it came about: its problem's.
_FAILURES = Template("""
SELECT (fact.failed_at AT TIME ZONE 'UTC')::date AS day, fact.failed_at AS at,
       topic.name AS topic, problem.consumer_group, problem.id AS problem,
       fact.poison_id AS poison, fact.cause::text, fact.is_first, fact.attempts
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
FROM ($decided) fact
JOIN poison_poison poison ON poison.id = fact.poison_id
JOIN brokers_topic topic ON topic.id = poison.topic_id
WHERE fact.at >= '$since' AND fact.at < '$until'
""")

_DECIDED = {
    "redriven": "SELECT poison_id, sent_at AS at FROM poison_redrive",
    "confirmed": "SELECT poison_id, confirmed_at AS at FROM poison_redrive",
    "recurred": """
        SELECT poison_id, answered_at AS at FROM poison_redrive
        WHERE outcome = 'recurred'
    """,
    "dropped": """
        SELECT item.poison_id, operation.finished_at AS at FROM triage_item item
        JOIN triage_operation operation ON operation.id = item.operation_id
        WHERE item.state = 'dropped'
    """,
}

_LEAVES = Template("""
WITH leaf AS (
    SELECT relid, pg_get_expr(relpartbound, relid) AS bound
    FROM pg_partition_tree('$table') JOIN pg_class ON oid = relid WHERE isleaf
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
    Kind.FAILURES: ("poison_failure", _FAILURES),
    Kind.COUNTERS: ("capture_counter", _COUNTERS),
}

# As Postgres gives them: what it calls jsonb is text here.
COLUMNS = {
    **SCHEMAS,
    Kind.COUNTERS: SCHEMAS[Kind.COUNTERS].replace("map<string, bigint>", "string"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
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
        until = self.last + timedelta(days=1)
        return {"since": f"{self.first} 00:00+00", "until": f"{until} 00:00+00"}


def statements(
    kind: Kind, window: Window, query: Query, *, blocks: int = BLOCKS
) -> list[str]:
    """Split the reading of one kind of facts; `query` asks Postgres what there is."""
    if kind is Kind.DECISIONS:
        return [
            _DECISIONS.substitute(window.bounds, what=what, decided=decided)
            for what, decided in _DECIDED.items()
        ]
    table, template = _TABLES[kind]
    pieces = (
        (template.substitute(window.bounds, table=leaf, place=place), size)
        for leaf, whole in _leaves(table, window, query)
        for place, size in _places(whole, blocks)
    )
    return list(_gathered(pieces, most=blocks // PIECES_OF_A_STATEMENT))


def _leaves(table: str, window: Window, query: Query) -> Sequence[tuple[str, int]]:
    asked = _LEAVES.substitute(
        table=table,
        first=window.first - CAPTURED_BEFORE,
        last=window.last + CAPTURED_AFTER,
    )
    return [(str(name), int(str(size))) for name, size in query(asked)]


def _places(size: int, blocks: int) -> Iterator[tuple[str, int]]:
    """Cut a table into ranges of so many blocks; the last is open, as tables grow."""
    for start in range(0, size, blocks):
        lower = f"fact.ctid >= '({start},0)'"
        end = start + blocks
        if end >= size:
            yield lower, size - start
        else:
            yield f"{lower} AND fact.ctid < '({end},0)'", blocks


def _gathered(pieces: Iterable[tuple[str, int]], *, most: int) -> Iterator[str]:
    """Put pieces into one statement as long as they have no more blocks than `most`."""
    gathered: list[str] = []
    total = 0
    for statement, size in pieces:
        if gathered and total + size > most:
            yield "UNION ALL".join(gathered)
            gathered, total = [], 0
        gathered.append(statement)
        total += size
    if gathered:
        yield "UNION ALL".join(gathered)
