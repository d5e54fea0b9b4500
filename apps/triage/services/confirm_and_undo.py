"""Confirm a preview, or undo a drop: the operation is queued to be carried out."""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime

from django.db import connection, transaction

from apps.audit import services as audit
from apps.audit.services import Action, clean_reason
from apps.core.errors import Absent, Invalid, Refused
from apps.team.rights import Principal, Scope
from apps.triage.errors import NotTaken, Stale
from apps.triage.item_kinds import kind_of
from apps.triage.models import Operation
from apps.triage.operation_states import (
    CONFIRMED,
    EXPLAINED,
    LAYOUTS,
    UNDO_WINDOW,
    OperationState,
    Verb,
)
from apps.triage.progress import counts_of
from apps.triage.services import operation_redirects, preview_summaries, previews
from apps.triage.services.earlier_layout_conversion import (
    convert_preview,
    require_converted,
)
from apps.triage.services.operation_audit_details import (
    audit_detail,
    single_item_detail,
)
from apps.triage.services.operation_item_judging import judge
from apps.triage.services.reasons_for_omitted_messages import reason_values
from apps.triage.services.selection_requests import Route, SelectionRequest, SendLimits

MOST_REASONS = 5
MOST_LOOKED_AT = 1_000
# A worker judges the items of a larger operation, window by window.
JUDGED_AT_ONCE = 1_000
TOO_LATE_TO_UNDO = (
    "This drop ended more than {days} days ago, and cannot be undone as a whole any "
    "more. Its messages are still there: search for is:dropped, and restore them."
)
WHY = {
    Verb.DROP: "say why these messages are dropped",
    Verb.GIVE_UP: "say why these deliveries are given up",
}
POLICY_CHANGED = "The topic {topic} is requeued elsewhere since the preview."
ROUTE_CHANGED = "Where the messages go, or their order, was changed after the preview."


def confirm(
    *,
    token: uuid.UUID,
    reason: str,
    principal: Principal,
    now: datetime,
    route: Route | None = None,
    limits: SendLimits | None = None,
) -> Operation:
    """Turn a preview into a queued operation.

    `route` and `limits` are those of the submitted form; None for the preview's own.
    Raises Stale, with a new preview where one can be made, when the token was used, has
    expired, leaves nothing to act on, or was previewed with another route. The new
    preview has the submitted route, and the reason as its draft.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    operation = convert_preview(_own_preview(token, principal))
    # Who takes its items has locked it: do not wait for that.
    if operation.state == OperationState.PREVIEW and not operation.is_taken:
        raise NotTaken
    reason = clean_reason(reason)
    if operation.verb in EXPLAINED and not reason:
        raise Invalid("reason", WHY[Verb(operation.verb)])
    previewed = Route.of(operation)
    route = route or previewed
    policy = operation_redirects.changed_topic(operation)
    if route == previewed and not policy:
        limits = limits or SendLimits.of(operation)
        obstacle = _queue_operation(operation.pk, reason, limits, principal, now=now)
    else:
        obstacle = POLICY_CHANGED.format(topic=policy) if policy else ROUTE_CHANGED
    if obstacle:
        new_preview = previews.preview_again(
            operation=operation,
            route=route,
            limits=limits,
            reason=reason,
            principal=principal,
            now=now,
        )
        raise Stale(obstacle, new_preview=new_preview)
    return Operation.objects.get(pk=operation.pk)


def undo(
    *,
    operation_id: int,
    principal: Principal,
    now: datetime,
    at_once: int | None = None,
) -> Operation:
    """Restore what an operation dropped, by a new operation confirmed at once.

    A worker takes its items if they are more than `at_once` (as `previews.preview`).
    Raises Refused when the drop ended longer ago than `UNDO_WINDOW`.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    visible = Operation.objects.visible_to(principal)
    dropped = visible.filter(pk=operation_id, verb=Verb.DROP).first()
    if dropped is None:
        raise Absent(f"There is no drop with the number {operation_id}.")
    if dropped.undo_ends_at is not None and dropped.undo_ends_at <= now:
        raise Refused(TOO_LATE_TO_UNDO.format(days=UNDO_WINDOW.days))
    require_converted(dropped)
    selection = SelectionRequest(verb=Verb.RESTORE, dropped_by=dropped.pk)
    operation = previews.preview(
        selection=selection, principal=principal, now=now, at_once=at_once
    )
    reason = f"undo of operation {dropped.pk}"
    limits = SendLimits()
    obstacle = _queue_operation(operation.pk, reason, limits, principal, now=now)
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


def _require_confirmations_to_come(operation: Operation, limits: SendLimits) -> None:
    """Raise Invalid if a ramp waits for confirmations, but all messages are moved."""
    if limits.ramp is None or limits.ramp.confirmed is None:
        return
    topics = preview_summaries.breakdown_of(operation).topic_ids
    if topics and not operation_redirects.topics_that_stay(operation, topics):
        raise Invalid("ramp/confirmed", previews.MOVED_IS_NEVER_CONFIRMED)


@transaction.atomic
def _queue_operation(
    operation_id: int,
    reason: str,
    limits: SendLimits,
    principal: Principal,
    *,
    now: datetime,
) -> str | None:
    """Queue the operation, or return the reason why it cannot be queued."""
    operation = Operation.objects.select_for_update().get(pk=operation_id)
    obstacle = _obstacle(operation, now=now)
    if obstacle:
        return obstacle
    obstacle = _why_nothing_is_left(operation, now=now)
    if obstacle:
        return obstacle
    _require_confirmations_to_come(operation, limits)
    Operation.objects.filter(pk=operation.pk).transition(
        to=OperationState.QUEUED,
        reason=reason,
        rate=limits.rate,
        ramp=limits.ramp and limits.ramp.to_json(),
        confirmed_at=now,
    )
    operation.refresh_from_db()
    if operation.total <= JUDGED_AT_ONCE and operation.taken:
        judge(operation, now=now)
    audit.record(
        action=Action.OPERATION_CONFIRMED,
        subject=f"operation:{operation.pk}",
        actor=principal.actor,
        reason=reason,
        source=principal.source,
        now=now,
        detail={
            **audit_detail(operation),
            "will_act": _items_to_act_on(operation),
            **kind_of(operation).problem_detail(operation),
            **single_item_detail(operation),
        },
    )
    return None


def _items_to_act_on(operation: Operation) -> int:
    """Count the items to act on; for a large undo, those that were dropped."""
    if not operation.taken and operation.undo_of is not None:
        return counts_of(operation.undo_of)["dropped"]
    if operation.judged < operation.total:
        return operation.will_act
    return operation.total - operation.skipped.count()


# The first few items are looked up. Of a large selection, the rest is judged when the
# operation takes hold of it.
_REASONS_NOW = """
SELECT CASE WHEN holder.operation IS NOT NULL
            THEN 'operation ' || holder.operation || ' has it'
            {reasons} ELSE '' END AS reason, count(*)
FROM (SELECT {key} FROM {items} item
      WHERE operation_id = %(operation)s
        AND NOT EXISTS (SELECT FROM triage_skipped_item
                        WHERE operation_id = item.operation_id AND number = item.number)
      ORDER BY number LIMIT %(most)s) item
{join} {table} ON {table}.id = item.{key}
LEFT JOIN {holds} holder ON holder.{key} = item.{key}
GROUP BY 1 ORDER BY 2 DESC, 1
"""


def _why_nothing_is_left(operation: Operation, *, now: datetime) -> str:
    """Say how many items are skipped, and why; "" if there is one to act on."""
    if not operation.is_taken or operation.will_act > MOST_LOOKED_AT:
        return ""
    kind = kind_of(operation)
    statement = kind.sql(_REASONS_NOW, reasons=kind.reasons[Verb(operation.verb)])
    values = {**reason_values(operation, now=now), "most": MOST_LOOKED_AT}
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        since = Counter(dict(cursor.fetchall()))
    if since[""]:
        return ""
    reasons = since + Counter(
        dict(preview_summaries.breakdown_of(operation).skipped.values)
    )
    counts = "; ".join(
        f"{number} skipped, {reason}"
        for reason, number in reasons.most_common(MOST_REASONS)
    )
    return f"Nothing is left to act on{counts and ': '}{counts}."


def _obstacle(operation: Operation, *, now: datetime) -> str | None:
    """Return why an operation's preview cannot be confirmed; None if it can."""
    if operation.state in CONFIRMED:
        return f"This preview was confirmed before, as operation {operation.pk}."
    if operation.state != OperationState.PREVIEW or operation.expires_at <= now:
        return "This preview has expired."
    if operation.layout not in LAYOUTS:
        raise NotTaken
    if not operation.taken and operation.undo_of_id is None:
        raise NotTaken
    return None
