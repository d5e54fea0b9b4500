"""The messages of an operation, with what became of each."""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.errors import Absent
from apps.poison.models import Poison
from apps.team.rights import Principal
from apps.triage.item_standings import ItemStanding, standings_of
from apps.triage.models import Operation
from apps.triage.progress import counts_of

MOST_SHOWN = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedItems:
    """A page of items with their messages; `next` is the number to go on after."""

    operation: Operation
    standing: str
    counts: dict[str, int]
    rows: list[tuple[ItemStanding, Poison | None]]
    next: int | None


def page(
    operation_id: int, principal: Principal, *, standing: str, after: int
) -> ListedItems:
    """List a page of items; raises Absent if the operation is not visible."""
    visible = Operation.objects.visible_to(principal).select_related("target_topic")
    operation = visible.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    items = standings_of(
        operation,
        standings=[standing] if standing else (),
        after=after,
        limit=MOST_SHOWN,
    )
    visible_items = [item for item in items if principal.sees(item.topic)]
    messages = Poison.objects.in_bulk([item.poison for item in visible_items])
    counts = counts_of(operation)
    return ListedItems(
        operation=operation,
        standing=standing,
        counts={name: number for name, number in counts.items() if number},
        rows=[(item, messages.get(item.poison)) for item in visible_items],
        next=items[-1].number if len(items) == MOST_SHOWN else None,
    )
