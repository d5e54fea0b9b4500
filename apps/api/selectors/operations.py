"""Read the operations and previews that a principal may see."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from apps.api.paging import Page, Window
from apps.core.errors import Absent
from apps.poison.states import Outcome
from apps.team.rights import Principal
from apps.triage.models import Item, Operation
from apps.triage.progress import ItemTally, pace_of
from apps.triage.querysets import ItemQuerySet
from apps.triage.services import previews
from apps.triage.services.previews import PreviewSummary
from apps.triage.states import ItemState

MOST_REASONS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far an operation has come; `rate` is in items a second so far."""

    operation: Operation
    tally: ItemTally
    silent: int
    refused: list[tuple[int, str]]
    skipped: list[tuple[int, str]]
    rate: float | None
    eta: datetime | None


def recent(window: Window, principal: Principal) -> Page[Operation]:
    rows = (
        Operation.objects.visible_to(principal)
        .select_related("target_topic")
        .recent_first()
    )
    return window.page(rows)


def progress(operation_id: int, principal: Principal, *, now: datetime) -> Progress:
    """Load a confirmed operation; raises Absent if it is not visible."""
    visible = Operation.objects.visible_to(principal).select_related("target_topic")
    operation = visible.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    items = Item.objects.filter(operation=operation)
    tally = ItemTally(total=operation.total, counts=items.counts())
    pace = pace_of(operation, tally, now=now)
    return Progress(
        operation=operation,
        tally=tally,
        silent=items.silent(now).count(),
        refused=_reasons(items.standing(Outcome.REFUSED), "redrive__detail"),
        skipped=_reasons(items.standing(ItemState.SKIPPED), "reason"),
        rate=pace.rate,
        eta=None if pace.remaining is None else now + pace.remaining,
    )


def preview(token: uuid.UUID, principal: Principal) -> tuple[Operation, PreviewSummary]:
    """Find one of this principal's own previews; raises Absent for any other token."""
    own = Operation.objects.previews().filter(actor=str(principal.actor))
    operation = own.select_related("target_topic").filter(token=token).first()
    if operation is None:
        raise Absent("This is not the token of a preview of yours; make a new one.")
    return operation, previews.summarize(operation=operation)


def _reasons(items: ItemQuerySet, field: str) -> list[tuple[int, str]]:
    return list(items.order_by("id").values_list("poison_id", field)[:MOST_REASONS])
