"""Find rows of one message id, in a table with its unique index or without.

Equal messages: one is sent, the others are duplicates of it. Different messages: none
of those that are unsent is sent until a person decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poisonguard.contract import Cause
from poisonguard.outbox.sweeping.array_literals import text_array
from poisonguard.outbox.sweeping.claimed_row_decoding import ClaimedRow, RefusedRow
from poisonguard.outbox.sweeping.connection import OutboxConnection

# Rows of one id that are quarantined at once, and that a reason names.
MOST_ROWS, MOST_NAMED = 1_000, 10
Identity = tuple[str, str]

# The first row that was claimed of an id stands for the message of this id. What was
# sent is looked up id by id: a join would sort all that was sent in the last 30 days.
LOOK_UP = f"""
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(places)s::bigint[], %(producers)s::text[], %(message_ids)s::text[],
        %(row_ids)s::bigint[]
    ) AS given (place, producer, message_id, row_id)
), others AS (
    SELECT given.place, entry.row_id, entry.sent_at IS NOT NULL AS is_sent,
        entry.quarantined_at IS NOT NULL AS is_quarantined,
        {{waiting}} AND entry.released_at IS NULL AS is_waiting,
        (SELECT (first.topic::text, first.key::text, first.body, first.headers)
            IS DISTINCT FROM
            (entry.topic::text, entry.key::text, entry.body, entry.headers)
         FROM {{outbox}} AS first WHERE first.row_id = given.row_id LIMIT 1
        ) AS is_different
    FROM given JOIN {{outbox}} AS entry
      ON entry.producer::text = given.producer
     AND entry.message_id::text = given.message_id
    WHERE entry.row_id <> ALL (%(claimed)s::bigint[])
)
SELECT place, min(row_id) FILTER (WHERE is_sent),
    min(row_id) FILTER (WHERE is_waiting), min(row_id) FILTER (WHERE is_quarantined),
    (array_agg(row_id ORDER BY row_id) FILTER (WHERE is_different))[:{MOST_NAMED}],
    (array_agg(row_id ORDER BY row_id) FILTER (WHERE is_waiting))[:{MOST_ROWS}],
    NULL::bytea[], NULL::text
FROM others GROUP BY place
UNION ALL
SELECT given.place, NULL, NULL, NULL, NULL, NULL, past.digests, past.sent_at
FROM given CROSS JOIN LATERAL (
    SELECT (array_agg(digest))[:{MOST_ROWS}] AS digests,
        min(sent_at)::text AS sent_at
    FROM {{sent}} AS past
    WHERE past.producer = given.producer AND past.message_id = given.message_id
) AS past
WHERE past.digests IS NOT NULL
UNION ALL
SELECT -1, fence, NULL, NULL, NULL, NULL, NULL, NULL FROM {{sweeper}}
"""  # noqa: S608 - made of constants
MARK = """
UPDATE {outbox} AS entry
SET duplicate_of = given.duplicate_of, claim_token = NULL, claimed_until = NULL
FROM unnest(%(row_ids)s::bigint[], %(duplicates_of)s::bigint[], %(versions)s::text[])
    AS given (row_id, duplicate_of, version)
WHERE entry.row_id = given.row_id
  AND entry.row_id = ANY (%(row_ids)s::bigint[])
  AND entry.xmin::text = given.version AND {waiting}
RETURNING entry.row_id
"""


@dataclass(slots=True)
class SameId:
    """What else has an id: rows that this window has not claimed, and sent messages."""

    sent_row: int | None = None
    waiting_row: int | None = None
    quarantined_row: int | None = None
    different_rows: list[int] = field(default_factory=list)
    waiting_rows: list[int] = field(default_factory=list)
    sent_digests: frozenset[bytes] = frozenset()
    sent_at: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateRow:
    """A row whose message another row sends or has sent: its own, if that is pruned."""

    row: ClaimedRow
    duplicate_of: int

    @property
    def row_id(self) -> int:
        return self.row.row_id


@dataclass(slots=True)
class Verdicts:
    """What is to be done with the rows of a window."""

    to_send: list[ClaimedRow] = field(default_factory=list)
    duplicates: list[DuplicateRow] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LookUp:
    """What has the ids of a window, and the fence of who may send now."""

    by_identity: Mapping[Identity, SameId]
    fence: int | None


def read_same_ids(
    connection: OutboxConnection, rows: Sequence[ClaimedRow | RefusedRow]
) -> LookUp:
    """Read other outbox rows and sent ids with the message ids of these rows."""
    first: dict[Identity, int] = {}
    for row in rows:
        if isinstance(row, ClaimedRow):
            first.setdefault(row.identity, row.row_id)
    identities = list(first)
    values = {
        "places": list(range(len(identities))),
        "producers": text_array(producer for producer, _ in identities),
        "message_ids": text_array(message_id for _, message_id in identities),
        "row_ids": list(first.values()),
        "claimed": [row.row_id for row in rows],
    }
    by_identity: dict[Identity, SameId] = {}
    fence = None
    for place, *answer in connection.execute(LOOK_UP, values):
        if place < 0:
            fence = answer[0]
            continue
        same = by_identity.setdefault(identities[place], SameId())
        _add(same, answer)
    return LookUp(by_identity, fence)


def judge(
    rows: Iterable[ClaimedRow | RefusedRow], others: Mapping[Identity, SameId]
) -> Verdicts:
    """Divide claimed outbox rows into those to send, duplicates, and refused ones.

    Refused are unreadable rows, and those in conflict about one message id.
    """
    verdicts, groups = Verdicts(), dict[Identity, list[ClaimedRow]]()
    unreadable: dict[Identity, int] = {}
    for row in rows:
        if isinstance(row, RefusedRow):
            verdicts.refused.append(row)
            if row.identity is not None:
                unreadable.setdefault(row.identity, row.row_id)
        elif row.is_released and not _was_sent(row, others):
            verdicts.to_send.append(row)
        else:
            groups.setdefault(row.identity, []).append(row)
    for identity, group in groups.items():
        same = others.get(identity, SameId())
        same.quarantined_row = same.quarantined_row or unreadable.get(identity)
        _judge_group(group, same, verdicts)
    verdicts.to_send.sort(key=lambda row: row.row_id)
    return verdicts


def mark(connection: OutboxConnection, rows: Sequence[DuplicateRow]) -> set[int]:
    """Mark outbox rows as duplicates; return those unchanged since their claim."""
    values = {
        "row_ids": [each.row_id for each in rows],
        "duplicates_of": [each.duplicate_of for each in rows],
        "versions": [each.row.version for each in rows],
    }
    return {row_id for (row_id,) in connection.execute(MARK, values)}


def _was_sent(row: ClaimedRow, others: Mapping[Identity, SameId]) -> bool:
    same = others.get(row.identity)
    return same is not None and row.digest in same.sent_digests


def _add(same: SameId, answer: Sequence[object]) -> None:
    sent_row, waiting, quarantined, different, waiting_rows, digests, sent_at = answer
    if digests is not None:
        same.sent_digests = frozenset(digests)  # type: ignore[call-overload]
        same.sent_at = str(sent_at)
        return
    same.sent_row, same.waiting_row = sent_row, waiting  # type: ignore[assignment]
    same.quarantined_row = quarantined  # type: ignore[assignment]
    same.different_rows = list(different or ())  # type: ignore[call-overload]
    same.waiting_rows = list(waiting_rows or ())  # type: ignore[call-overload]


def _judge_group(group: Sequence[ClaimedRow], same: SameId, verdicts: Verdicts) -> None:
    """Decide which of the outbox rows of one message id is sent."""
    new = [row for row in group if row.digest not in same.sent_digests]
    for row in group:
        if row.digest in same.sent_digests:
            _add_duplicate(row, same.sent_row or row.row_id, verdicts)
    if not new:
        return
    reason = _conflict(new, same)
    if reason:
        _refuse(new, same, reason, verdicts)
        return
    earlier = [row_id for row_id in (same.sent_row,) if row_id is not None]
    if same.waiting_row is not None and same.waiting_row < new[0].row_id:
        earlier.append(same.waiting_row)
    if not earlier:
        verdicts.to_send.append(new[0])
    first = earlier[0] if earlier else new[0].row_id
    for row in new if earlier else new[1:]:
        _add_duplicate(row, first, verdicts)


def _conflict(new: Sequence[ClaimedRow], same: SameId) -> str:
    """Return why the sweeper sends no row of a message id; "" if it may send one."""
    if same.sent_digests:
        return (
            "two messages under one id: another message with it was sent at"
            f" {same.sent_at}"
        )
    if len({row.digest for row in new}) > 1 or same.different_rows:
        row_ids = sorted({*(row.row_id for row in new), *same.different_rows})
        names = ", ".join(map(str, row_ids[:MOST_NAMED]))
        return f"two messages under one id: rows {names} are different"
    if same.quarantined_row is not None:
        return (
            "two messages under one id: row"
            f" {same.quarantined_row} is quarantined with it"
        )
    return ""


def _refuse(
    rows: Sequence[ClaimedRow], same: SameId, reason: str, verdicts: Verdicts
) -> None:
    versions = {row.row_id: row.version for row in rows}
    # What was not claimed has no version of ours.
    versions |= dict.fromkeys(same.waiting_rows, "")
    verdicts.refused += [
        RefusedRow(row_id=row_id, cause=Cause.REJECTED, reason=reason, version=version)
        for row_id, version in versions.items()
    ]


def _add_duplicate(row: ClaimedRow, duplicate_of: int, verdicts: Verdicts) -> None:
    verdicts.duplicates.append(DuplicateRow(row=row, duplicate_of=duplicate_of))
