"""The messages or deliveries of an operation, with what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.core.errors import Absent
from apps.poison.models import Poison
from apps.redelivery.models import Delivery
from apps.team.rights import Principal
from apps.triage.item_kinds import ItemKey
from apps.triage.item_standings import ItemStanding, listed_items
from apps.triage.models import Operation
from apps.triage.operation_states import SILENT
from apps.triage.progress import counts_of, silent_number

MOST_SHOWN = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedItems:
    """A page of items; `next` is the number to go on after.

    `counts` are by standing, and of the silent ones among them. Each item comes with
    its message or its delivery; a delivery may be deleted by now.
    """

    operation: Operation
    standing: str
    counts: dict[str, int]
    rows: list[tuple[ItemStanding, Poison | Delivery | None]]
    next: int | None


def page(
    operation_id: int,
    principal: Principal,
    *,
    standing: str,
    after: int,
    now: datetime,
) -> ListedItems:
    """List a page of an operation's visible items, after an item's number.

    Raises Absent if the operation is not visible.
    """
    visible = Operation.objects.visible_to(principal).select_related("target_topic")
    operation = visible.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    items = listed_items(
        operation, standing=standing, after=after, limit=MOST_SHOWN, now=now
    )
    visible_items = [item for item in items if principal.sees(item.topic)]
    rows = _rows_of(visible_items)
    counts = {**counts_of(operation), SILENT: silent_number(operation, now=now)}
    return ListedItems(
        operation=operation,
        standing=standing,
        counts={name: number for name, number in counts.items() if number},
        rows=[(item, rows.get(item.key)) for item in visible_items],
        next=items[-1].number if len(items) == MOST_SHOWN else None,
    )


def _rows_of(items: Sequence[ItemStanding]) -> Mapping[ItemKey, Poison | Delivery]:
    """Load the messages or deliveries of an operation's items that still exist."""
    messages = [item.poison for item in items if item.poison is not None]
    if messages:
        return {row.pk: row for row in Poison.objects.filter(pk__in=messages)}
    ids = [item.delivery for item in items if item.delivery is not None]
    rows = Delivery.objects.filter(pk__in=ids).select_related("endpoint")
    return {row.pk: row for row in rows}
