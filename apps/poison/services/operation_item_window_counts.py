"""Keep the counts of windows: one addition for each window that a batch changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from django.db import connection

from apps.poison.states import COUNTED

# Its operation, and the number of its first item.
Window = tuple[int, int]


class Change(NamedTuple):
    """An item that changed its standing; "" stands for waiting."""

    operation: int | None
    item: int | None
    before: str
    after: str


_COLUMNS = ", ".join(COUNTED)
_ADDED = ", ".join(f"{name} = poison_window.{name} + change.{name}" for name in COUNTED)
_COUNT = f"""
UPDATE poison_window SET {_ADDED}
FROM unnest(%s::int8[], %s::int4[]{", %s::int4[]" * len(COUNTED)})
     AS change(operation, first, {_COLUMNS})
WHERE poison_window.operation = change.operation AND poison_window.first = change.first
"""  # noqa: S608 - made of our own names

# The highest window that begins at or before the item is the one that has it.
_FIND = """
SELECT item.operation, item.number,
       (SELECT first FROM poison_window own
        WHERE own.operation = item.operation AND own.first <= item.number
        ORDER BY first DESC LIMIT 1)
FROM unnest(%s::int8[], %s::int4[]) AS item(operation, number)
"""

# The windows are locked in order, so that two answers never wait in a circle.
_LOCK = """
SELECT FROM poison_window JOIN unnest(%s::int8[], %s::int4[]) AS own(operation, first)
USING (operation, first) ORDER BY operation, first FOR NO KEY UPDATE OF poison_window
"""


def count(changes: Iterable[Change]) -> None:
    """Add changes of items' standings to the counts of their windows.

    Redrives of before there were windows are not counted. Call it inside a
    transaction, after the poisons are locked.
    """
    real = [
        change
        for change in changes
        if change.operation is not None and change.before != change.after
    ]
    if not real:
        return
    windows = _windows_of(real)
    by_window = defaultdict[Window, list[Change]](list)
    for change in real:
        window = windows.get((change.operation, change.item))
        if window is not None:
            by_window[window].append(change)
    if by_window:
        _add(by_window)


def count_in_window(window: Window, changes: Iterable[Change]) -> None:
    """Add changes of items' standings to the counts of their operation's window.

    All of the items are in this window. Call it inside a transaction, after the poisons
    are locked.
    """
    real = [change for change in changes if change.before != change.after]
    if real:
        _add({window: real})


def _add(changes: Mapping[Window, Sequence[Change]]) -> None:
    """Add the changes of items' standings to the counts of each window."""
    keys = sorted(changes)
    deltas = []
    for key in keys:
        delta = Counter(change.after for change in changes[key])
        delta.subtract(change.before for change in changes[key])
        deltas.append(delta)
    columns = [[delta[name] for delta in deltas] for name in COUNTED]
    where = [[operation for operation, _ in keys], [first for _, first in keys]]
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, where)
        cursor.execute(_COUNT, [*where, *columns])


def _windows_of(
    changes: Iterable[Change],
) -> dict[tuple[int | None, int | None], Window]:
    """Find the operation's window of each changed item.

    Returns (operation, item) to (operation, first item of the window).
    """
    items = sorted({(change.operation, change.item) for change in changes})
    with connection.cursor() as cursor:
        cursor.execute(_FIND, [[each for each, _ in items], [n for _, n in items]])
        return {
            (operation, item): (operation, first)
            for operation, item, first in cursor.fetchall()
            if first is not None
        }
