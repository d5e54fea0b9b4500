"""Operations and previews, as far as their topics may be seen.

A key for some topics sees the decisions that were made under its own patterns, or under
fewer of them; never what was decided over topics that it does not see.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.api.paging import Page, Place, Window
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
FORESEEABLE = timedelta(days=365)


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


def seen_by(principal: Principal) -> OperationQuerySet:
    confirmed = Operation.objects.confirmed()
    if principal.sees_every_topic:
        return confirmed
    return confirmed.filter(topics__contained_by=list(principal.topics))


def recent(window: Window, principal: Principal) -> Page[Operation]:
    rows = seen_by(principal).select_related("target_topic").recent_first()
    if window.after:
        rows = rows.filter(pk__lt=window.after.pk)
    return window.cut(rows, lambda row: Place(pk=row.pk))


def visible(operation_id: int, principal: Principal) -> Operation:
    """Find a confirmed operation; raises Absent where this principal sees none."""
    allowed = seen_by(principal).select_related("target_topic")
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
        refused=_told(items.standing(Outcome.REFUSED), "redrive__detail"),
        skipped=_told(items.standing(ItemState.SKIPPED), "reason"),
        rate=rate,
        eta=eta,
    )


def preview(token: uuid.UUID, principal: Principal) -> tuple[Operation, PreviewSummary]:
    """Find a preview of this principal's own; raises Absent for any other token."""
    own = Operation.objects.previews().filter(actor=str(principal.actor))
    operation = own.select_related("target_topic").filter(token=token).first()
    if operation is None:
        raise Absent("This is not the token of a preview of yours; make a new one.")
    return operation, selection.summarize(operation=operation)


def _silent(items: ItemQuerySet, *, now: datetime) -> int:
    limit = now - timedelta(seconds=SILENT_AFTER_SECONDS)
    sent = items.filter(redrive__outcome=Outcome.SENT, redrive__sent_at__lt=limit)
    return sent.count()


def _told(items: ItemQuerySet, why: str) -> list[tuple[int, str]]:
    return list(items.order_by("id").values_list("poison_id", why)[:MOST_REASONS])


def _pace(
    operation: Operation, tally: ItemTally, *, now: datetime
) -> tuple[float | None, datetime | None]:
    """Guess the end from the pace so far, once there is one."""
    finished = tally.finished
    began, ended = operation.confirmed_at, operation.finished_at or now
    seconds = (ended - began).total_seconds() if began else 0.0
    if not finished or seconds <= 0:
        return None, None
    rate = finished / seconds
    if operation.state not in UNFINISHED:
        return rate, None
    left = timedelta(seconds=(tally.acts_on - finished) / rate)
    return rate, now + left if left < FORESEEABLE else None
