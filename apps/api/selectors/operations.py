"""Read the operations and previews that a principal may see."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from apps.api.paging import Page, PageWindow
from apps.core.errors import Absent
from apps.poison.states import RedriveOutcome
from apps.team.rights import Principal
from apps.triage.models import Item, Operation
from apps.triage.progress import OperationProgress, progress_of
from apps.triage.querysets import ItemQuerySet
from apps.triage.services import previews
from apps.triage.services.previews import PreviewSummary
from apps.triage.states import ItemState

MOST_REASONS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationDetail:
    """An operation with its progress, and the first refused and skipped poisons."""

    progress: OperationProgress
    refused: list[tuple[int, str]]
    skipped: list[tuple[int, str]]


def recent(window: PageWindow, principal: Principal) -> Page[Operation]:
    """List a page of visible operations, newest first."""
    rows = (
        Operation.objects.visible_to(principal)
        .select_related("target_topic")
        .recent_first()
    )
    return window.page(rows)


def one(operation_id: int, principal: Principal, *, now: datetime) -> OperationDetail:
    """Load a confirmed operation; raises Absent if it is not visible."""
    progress = progress_of(operation_id=operation_id, principal=principal, now=now)
    items = Item.objects.filter(operation=progress.operation)
    return OperationDetail(
        progress=progress,
        refused=_reasons(items.standing(RedriveOutcome.REFUSED), "redrive__detail"),
        skipped=_reasons(items.standing(ItemState.SKIPPED), "reason"),
    )


def preview(token: uuid.UUID, principal: Principal) -> PreviewSummary:
    """Find one of this principal's own previews; raises Absent for any other token."""
    own = Operation.objects.previews().filter(actor=str(principal.actor))
    operation = own.select_related("target_topic").filter(token=token).first()
    if operation is None:
        raise Absent("This is not the token of a preview of yours; make a new one.")
    return previews.summarize(operation=operation)


def _reasons(items: ItemQuerySet, field: str) -> list[tuple[int, str]]:
    """List the first messages with the reason why each was not acted on."""
    return list(items.order_by("id").values_list("poison_id", field)[:MOST_REASONS])
