"""Read the operations and previews that a principal may see."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from apps.api.keyset_pagination import DEFAULT_LIMIT, Page, PageWindow
from apps.core.errors import Absent
from apps.core.statement_timeouts import TooSlow
from apps.poison.skip_matching import RuleMatches
from apps.poison.states import RedriveOutcome
from apps.team.rights import Principal, Scope
from apps.triage.item_standings import ItemStanding, listed_items, standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import ItemState, OperationGroup
from apps.triage.progress import OperationProgress, progress_of
from apps.triage.services import preview_summaries, requeues_in_vain
from apps.triage.services.earlier_layout_conversion import convert_preview
from apps.triage.services.preview_summaries import PreviewSummary

MOST_REASONS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationDetail:
    """An operation with its progress, and the first refused and skipped poisons."""

    progress: OperationProgress
    refused: list[tuple[int, str]]
    skipped: list[tuple[int, str]]


def recent(
    window: PageWindow, principal: Principal, *, show: OperationGroup | None
) -> Page[Operation]:
    """List a page of the visible operations of a group, newest first; None: of all."""
    rows = (
        Operation.objects.visible_to(principal)
        .in_group(show)
        .select_related("target_topic", "acknowledgement")
        .recent_first()
    )
    return window.page(rows)


def one(operation_id: int, principal: Principal, *, now: datetime) -> OperationDetail:
    """Load a confirmed operation; raises Absent if it is not visible."""
    progress = progress_of(operation_id=operation_id, principal=principal, now=now)
    return OperationDetail(
        progress=progress,
        refused=_reasons(progress.operation, RedriveOutcome.REFUSED),
        skipped=_reasons(progress.operation, ItemState.SKIPPED),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemsPage:
    """Items of an operation in its order; `next` is the number to go on after."""

    results: list[ItemStanding]
    next: int | None


def items(
    operation_id: int,
    principal: Principal,
    *,
    standing: str | None,
    after: int | None,
    limit: int | None,
    now: datetime,
) -> ItemsPage:
    """List a page of an operation's items: of one standing, the silent ones, or all.

    Leaves out items of topics that the principal does not see. Raises Absent if they do
    not see the operation.
    """
    visible = Operation.objects.visible_to(principal)
    operation = visible.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    limit = limit or DEFAULT_LIMIT
    rows = listed_items(
        operation,
        standing=standing or "",
        after=-1 if after is None else after,
        limit=limit,
        now=now,
    )
    return ItemsPage(
        results=[row for row in rows if principal.sees(row.topic)],
        next=rows[-1].number if len(rows) == limit else None,
    )


def preview(token: uuid.UUID, principal: Principal) -> PreviewSummary:
    """Summarize one of a principal's own previews; raises Absent for another's."""
    own = Operation.objects.previews().filter(actor=str(principal.actor))
    operation = own.select_related("target_topic").filter(token=token).first()
    if operation is None:
        raise Absent("This is not the token of a preview of yours; make a new one.")
    return preview_summaries.summarize(operation=convert_preview(operation))


def skipped_again(
    summary: PreviewSummary, principal: Principal, *, now: datetime
) -> RuleMatches | None:
    """Match a preview's messages with rules; None if it takes too long.

    None also for a principal that may not read skips.
    """
    if not principal.may(Scope.SKIPS_READ):
        return None
    matches = requeues_in_vain.of_preview(summary, now=now)
    return None if isinstance(matches, TooSlow) else matches


def _reasons(operation: Operation, standing: str) -> list[tuple[int, str]]:
    """List an operation's first poisons of a standing for the API, with the reasons."""
    items = standings_of(operation, standings=[standing], limit=MOST_REASONS)
    return [(item.poison, item.explanation) for item in items if item.poison]
