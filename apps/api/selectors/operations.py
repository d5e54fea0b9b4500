"""Read the operations and previews that a principal may see.

A key for some topics sees the operations that were confirmed under its own patterns, or
under fewer of them; never an operation over topics that it does not see.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.api.paging import Page, RowKey, Window
from apps.core.errors import Absent
from apps.poison.states import SILENT_AFTER_SECONDS, Outcome
from apps.team.rights import Principal
from apps.triage.models import Item, Operation
from apps.triage.progress import ItemTally
from apps.triage.querysets import ItemQuerySet, OperationQuerySet
from apps.triage.services import selection
from apps.triage.services.selection import PreviewSummary
from apps.triage.states import UNFINISHED, ItemState

MOST_REASONS = 200
LONGEST_ESTIMATE = timedelta(days=365)


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


def visible_to(principal: Principal) -> OperationQuerySet:
    confirmed = Operation.objects.confirmed()
    if principal.sees_every_topic:
        return confirmed
    return confirmed.filter(topics__contained_by=list(principal.topics))


def recent(window: Window, principal: Principal) -> Page[Operation]:
    rows = visible_to(principal).select_related("target_topic").recent_first()
    if window.after:
        rows = rows.filter(pk__lt=window.after.pk)
    return window.page(rows, lambda row: RowKey(pk=row.pk))


def visible(operation_id: int, principal: Principal) -> Operation:
    """Find a confirmed operation; raises Absent if this principal does not see it."""
    allowed = visible_to(principal).select_related("target_topic")
    operation = allowed.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    return operation


def progress(operation_id: int, principal: Principal, *, now: datetime) -> Progress:
    operation = visible(operation_id, principal)
    items = Item.objects.filter(operation=operation)
    tally = ItemTally(total=operation.total, counts=items.counts())
    rate, eta = _pace(operation, tally, now=now)
    return Progress(
        operation=operation,
        tally=tally,
        silent=_silent(items, now=now),
        refused=_reasons(items.standing(Outcome.REFUSED), "redrive__detail"),
        skipped=_reasons(items.standing(ItemState.SKIPPED), "reason"),
        rate=rate,
        eta=eta,
    )


def preview(token: uuid.UUID, principal: Principal) -> tuple[Operation, PreviewSummary]:
    """Find one of this principal's own previews; raises Absent for any other token."""
    own = Operation.objects.previews().filter(actor=str(principal.actor))
    operation = own.select_related("target_topic").filter(token=token).first()
    if operation is None:
        raise Absent("This is not the token of a preview of yours; make a new one.")
    return operation, selection.summarize(operation=operation)


def _silent(items: ItemQuerySet, *, now: datetime) -> int:
    limit = now - timedelta(seconds=SILENT_AFTER_SECONDS)
    return items.filter(
        redrive__outcome=Outcome.SENT, redrive__sent_at__lt=limit
    ).count()


def _reasons(items: ItemQuerySet, field: str) -> list[tuple[int, str]]:
    return list(items.order_by("id").values_list("poison_id", field)[:MOST_REASONS])


def _pace(
    operation: Operation, tally: ItemTally, *, now: datetime
) -> tuple[float | None, datetime | None]:
    """Give the rate so far, and the end that it predicts; None while it is unknown."""
    finished = tally.finished
    began, ended = operation.confirmed_at, operation.finished_at or now
    seconds = (ended - began).total_seconds() if began else 0.0
    if not finished or seconds <= 0:
        return None, None
    rate = finished / seconds
    if operation.state not in UNFINISHED:
        return rate, None
    remaining = timedelta(seconds=(tally.acts_on - finished) / rate)
    return rate, now + remaining if remaining < LONGEST_ESTIMATE else None
