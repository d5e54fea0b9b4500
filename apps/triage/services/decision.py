"""Confirm a preview, or undo a drop: the operation is queued to be carried out."""

from __future__ import annotations

import uuid
from datetime import datetime

from django.db import connection, transaction

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.core.errors import Absent, Invalid
from apps.poison import services as poison
from apps.poison.query import Query
from apps.team.rights import Principal, Scope
from apps.triage.errors import NotTaken, Stale
from apps.triage.models import Operation
from apps.triage.services import previews
from apps.triage.services.audit_details import audit_detail, single_message
from apps.triage.services.previews import Route, SelectionRequest
from apps.triage.states import CONFIRMED, OperationState, Verb

MOST_REASONS = 5
MOST_LOOKED_AT = 1_000
MOST_PROBLEMS = 100
ROUTE_CHANGED = "Where the messages go, or their order, was changed after the preview."


def confirm(
    *,
    token: uuid.UUID,
    reason: str,
    principal: Principal,
    now: datetime,
    route: Route | None = None,
) -> Operation:
    """Turn a preview into a queued operation.

    `route` is the route in the submitted form; None stands for the preview's own.
    Raises Stale, with a new preview where one can be made, when the token was used, has
    expired, leaves nothing to act on, or was previewed with another route. The new
    preview has the submitted route, and the reason as its draft.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    operation = _own_preview(token, principal)
    reason = clean_reason(reason)
    if operation.verb == Verb.DROP and not reason:
        raise Invalid("reason", "say why these messages are dropped")
    previewed = Route.of(operation)
    route = route or previewed
    if route == previewed:
        obstacle = _queue_operation(operation.pk, reason, principal, now=now)
    else:
        obstacle = ROUTE_CHANGED
    if obstacle:
        new_preview = previews.preview_again(
            operation=operation,
            route=route,
            reason=reason,
            principal=principal,
            now=now,
        )
        raise Stale(obstacle, new_preview=new_preview)
    return Operation.objects.get(pk=operation.pk)


def undo(*, operation_id: int, principal: Principal, now: datetime) -> Operation:
    """Restore what an operation dropped, by a new operation confirmed at once."""
    principal.require(Scope.OPERATIONS_WRITE)
    visible = Operation.objects.visible_to(principal)
    dropped = visible.filter(pk=operation_id, verb=Verb.DROP).first()
    if dropped is None:
        raise Absent(f"There is no drop with the number {operation_id}.")
    selection = SelectionRequest(verb=Verb.RESTORE, dropped_by=dropped.pk)
    operation = previews.preview(selection=selection, principal=principal, now=now)
    previews.take(operation_id=operation.pk, now=now)
    reason = f"undo of operation {dropped.pk}"
    obstacle = _queue_operation(operation.pk, reason, principal, now=now)
    if obstacle:
        raise Stale(obstacle, new_preview=None)
    return Operation.objects.get(pk=operation.pk)


def _own_preview(token: uuid.UUID, principal: Principal) -> Operation:
    """Find the principal's preview by its token; raise Stale for another's."""
    operations = Operation.objects.select_related("target_topic")
    operation = operations.filter(token=token, actor=str(principal.actor)).first()
    if operation is None:
        raise Stale("This token is not one of yours.", new_preview=None)
    return operation


@transaction.atomic
def _queue_operation(
    operation_id: int, reason: str, principal: Principal, *, now: datetime
) -> str | None:
    """Queue the operation, or return the reason why it cannot be queued."""
    operation = Operation.objects.select_for_update().get(pk=operation_id)
    obstacle = _obstacle(operation, now=now)
    if obstacle:
        return obstacle
    waiting = operation.items.waiting()
    poison.lock(waiting.values_list("poison_id", flat=True))
    _skip_what_others_hold(operation)
    previews.skip_what_was_decided_since(operation, now=now)
    number = waiting.update(held=True)
    if number == 0:
        return _why_nothing_is_left(operation)
    Operation.objects.filter(pk=operation.pk).transition(
        to=OperationState.QUEUED, reason=reason, confirmed_at=now
    )
    audit.record(
        action=Action.OPERATION_CONFIRMED,
        subject=f"operation:{operation.pk}",
        actor=principal.actor,
        reason=reason,
        source=principal.source,
        now=now,
        detail={
            **audit_detail(operation),
            "will_act": number,
            "problems": _problem_ids(operation, number),
            **single_message(operation.items.waiting(), number),
        },
    )
    return None


def _problem_ids(operation: Operation, number: int) -> list[int]:
    """List the ids of the problems it acts on; [] if that is slow or they are many."""
    query = Query.from_canonical(operation.query or "")
    if ids := query.value_of("problem"):
        problems = sorted({int(each) for each in ids.split(",")})
    elif number > MOST_LOOKED_AT:
        return []
    else:
        name = "poison__problem_id"
        rows = operation.items.waiting().order_by(name).values_list(name, flat=True)
        problems = list(rows.distinct()[: MOST_PROBLEMS + 1])
    return problems if len(problems) <= MOST_PROBLEMS else []


def _why_nothing_is_left(operation: Operation) -> str:
    """Say by how many skipped items, and why, nothing is left."""
    reasons = previews.skipped_by_reason(operation)[:MOST_REASONS]
    counts = "; ".join(f"{number} skipped, {reason}" for reason, number in reasons)
    return f"Nothing is left to act on{counts and ': '}{counts}."


def _obstacle(operation: Operation, *, now: datetime) -> str | None:
    """Return why a preview cannot be confirmed; None if it can."""
    if operation.state in CONFIRMED:
        return f"This preview was confirmed before, as operation {operation.pk}."
    if operation.state != OperationState.PREVIEW or operation.expires_at <= now:
        return "This preview has expired."
    if not operation.taken:
        raise NotTaken
    return None


# OFFSET 0 makes Postgres look up each holder by its poison. Otherwise the planner, with
# statistics from before any item was held, compares every item with every holder.
_SKIP_HELD = """
UPDATE triage_item SET state = 'skipped',
       reason = 'operation ' || holder.operation_id || ' has it'
FROM triage_item waiting, LATERAL (
    SELECT operation_id FROM triage_item
    WHERE poison_id = waiting.poison_id AND held OFFSET 0
) holder
WHERE waiting.operation_id = %s AND waiting.state = 'waiting'
  AND triage_item.id = waiting.id
"""


def _skip_what_others_hold(operation: Operation) -> None:
    """Skip the items whose message another operation holds."""
    with connection.cursor() as cursor:
        cursor.execute(_SKIP_HELD, [operation.pk])
