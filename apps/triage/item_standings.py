"""What became of each item of an operation, in order.

Nothing is written for it: an item's standing follows from its skip, its redrive and its
window. Windows count their items, so of a million only those with matches are read.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.core.queryset_sql import read_by_index
from apps.poison.states import COUNTED, GIVEN_BACK, RedriveOutcome, silent_before
from apps.triage.item_kinds import ItemKey, ItemKind, kind_of
from apps.triage.models import Operation
from apps.triage.operation_states import SILENT, STANDINGS, ItemState


@dataclass(frozen=True, slots=True)
class ItemStanding:
    """An item of an operation, and what became of it.

    `explanation` says why it was skipped, or what the broker answered. `queue` is the
    dead-letter queue that it was given back to.
    """

    number: int
    key: ItemKey
    topic: str
    standing: str
    explanation: str
    queue: str
    sent_at: datetime | None
    answered_at: datetime | None

    @property
    def poison(self) -> int | None:
        """Return the number of the item's message; None for a delivery."""
        return self.key if isinstance(self.key, int) else None

    @property
    def delivery(self) -> uuid.UUID | None:
        """Return the id of the item's delivery; None for a message."""
        return self.key if isinstance(self.key, uuid.UUID) else None

    @property
    def label(self) -> str:
        """Return the item's standing in the words of pages."""
        return (
            GIVEN_BACK.get(self.standing, self.standing)
            if self.queue
            else self.standing
        )


# Only the first windows are read that have enough matches. What was claimed may have
# become something else than the window counts. Where items were decided at once, those
# that are not skipped were acted on.
_IN_WINDOWS = """
SELECT item.number, item.{key}, '' AS reason, own.state, own.sending_to,
       own.dropped, own.restored
FROM (
    SELECT first, items, state, sending_to, dropped, restored,
           sum(surely) OVER (ORDER BY first) - surely AS before
    FROM (
        SELECT *, CASE WHEN first <= %(after)s OR state = 'sending' THEN 0
                  ELSE {matches} END AS surely
        FROM poison_window
        WHERE operation = %(operation)s AND first + items > %(after)s AND {matches} > 0
    ) matching
) own
CROSS JOIN LATERAL (
    SELECT number, {key} FROM {items} selected
    WHERE operation_id = %(operation)s AND number > %(after)s
      AND number >= own.first AND number < own.first + own.items
      AND NOT EXISTS (SELECT FROM triage_skipped_item
                      WHERE operation_id = %(operation)s AND number = selected.number)
    OFFSET 0
) item
WHERE own.before < %(limit)s
"""

_SKIPPED = """
SELECT skip.number, item.{key}, skip.reason, '', 0, 0, 0
FROM (SELECT number, reason FROM triage_skipped_item
      WHERE operation_id = %(operation)s AND number > %(after)s
      ORDER BY number LIMIT %(limit)s) skip
JOIN {items} item
     ON item.operation_id = %(operation)s AND item.number = skip.number
"""

# The items that are not judged yet have no window; those of a preview may be skipped.
# Read here, so that it fits the windows: a run may judge more at any time.
_UNJUDGED = """
(SELECT number, {key}, '', 'waiting', 0, 0, 0 FROM {items} item
 WHERE operation_id = %(operation)s AND number > %(after)s
   AND number >= (SELECT judged FROM triage_operation WHERE id = %(operation)s)
   AND NOT EXISTS (
       SELECT FROM triage_skipped_item
       WHERE operation_id = item.operation_id AND number = item.number)
 ORDER BY number LIMIT %(limit)s)
"""


def standings_of(
    operation: Operation,
    *,
    standings: Sequence[str] = (),
    after: int = -1,
    limit: int,
) -> list[ItemStanding]:
    """List an operation's items with one of these standings, in order.

    Begins after the item with the number `after`. Raises ValueError for an unknown
    standing.
    """
    if unknown := set(standings) - set(STANDINGS):
        raise ValueError(f"no standing of an item: {sorted(unknown)}")
    names = standings or STANDINGS
    items = _items(kind_of(operation), names)
    return _read(operation, items, standings=names, after=after, limit=limit)


def listed_items(
    operation: Operation, *, standing: str, after: int = -1, limit: int, now: datetime
) -> list[ItemStanding]:
    """List an operation's items of a standing, all or the silent ones, in order.

    The silent ones are those that `ItemWindow.objects.silent` counts.
    Begins after the item with the number `after`.
    """
    if standing != SILENT:
        names = [standing] if standing else ()
        return standings_of(operation, standings=names, after=after, limit=limit)
    outcomes = [RedriveOutcome.SENT.value]
    matches = "CASE WHEN marked_at < %(silent_before)s THEN sent ELSE 0 END"
    if operation.is_long_over(now):
        outcomes.append(RedriveOutcome.UNKNOWN.value)
        matches = (
            "CASE WHEN marked_at >= %(silent_before)s THEN 0 ELSE sent + unknown END"
        )
    return _read(
        operation,
        kind_of(operation).sql(_IN_WINDOWS, matches=matches),
        standings=outcomes,
        after=after,
        limit=limit,
        silent_before=silent_before(now),
    )


def _read(
    operation: Operation,
    items: str,
    *,
    standings: Sequence[str],
    after: int,
    limit: int,
    **values: Any,
) -> list[ItemStanding]:
    """Read those of an operation's items that have one of these standings."""
    kind = kind_of(operation)
    values |= {
        "operation": operation.pk,
        "after": after,
        "standings": list(standings),
        "limit": limit,
    }
    with transaction.atomic(), connection.cursor() as cursor:
        read_by_index()
        cursor.execute(kind.standings.format(items=items), values)
        return [ItemStanding(*row) for row in cursor.fetchall()]


def _items(kind: ItemKind, names: Sequence[str]) -> str:
    """Return the SQL of an operation's items that may have these standings."""
    counted = [name for name in COUNTED if name in names and name != ItemState.SKIPPED]
    parts = [_SKIPPED] if ItemState.SKIPPED in names else []
    if ItemState.WAITING in names:
        counted.append(f"items - {' - '.join(COUNTED)}")
        parts.append(_UNJUDGED)
    if counted:
        parts.insert(0, _IN_WINDOWS)
    return kind.sql(" UNION ALL ".join(parts), matches=f"({' + '.join(counted)})")
