"""Decide on an operation, and enqueue its Celery task on commit.

The task may be lost (the Celery broker is away, a crash): `rescue` finds the row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from apps.core.enqueue_on_commit import enqueue_on_commit
from apps.team.rights import Principal
from apps.triage import tasks
from apps.triage.errors import Stale
from apps.triage.models import Operation
from apps.triage.operation_states import ACTIVE, Verb
from apps.triage.services import confirm_and_undo, control, previews
from apps.triage.services.control import ControlStep
from apps.triage.services.selection_requests import Route, SelectionRequest, SendLimits


def preview(
    *, selection: SelectionRequest, principal: Principal, now: datetime
) -> Operation:
    """Preview an operation; enqueue the insertion of its items if they are many."""
    operation = previews.preview(selection=selection, principal=principal, now=now)
    _enqueue_insertion(operation)
    return operation


def preview_again(
    *,
    operation: Operation,
    route: Route,
    limits: SendLimits | None = None,
    reason: str,
    principal: Principal,
    now: datetime,
) -> Operation | None:
    """Preview an operation by another route, and enqueue its items' insertion."""
    new_preview = previews.preview_again(
        operation=operation,
        route=route,
        limits=limits,
        reason=reason,
        principal=principal,
        now=now,
    )
    if new_preview is not None:
        _enqueue_insertion(new_preview)
    return new_preview


def preview_retry(
    *, operation_id: int, standings: Sequence[str], principal: Principal, now: datetime
) -> Operation:
    """Preview a requeue of an operation's messages that have one of these standings."""
    selection = SelectionRequest(
        verb=Verb.REDRIVE, retry_of=operation_id, standings=tuple(standings)
    )
    return preview(selection=selection, principal=principal, now=now)


def confirm(
    *,
    token: uuid.UUID,
    reason: str,
    principal: Principal,
    now: datetime,
    route: Route | None = None,
    limits: SendLimits | None = None,
) -> Operation:
    """Confirm a preview, and enqueue the task that runs the operation."""
    try:
        operation = confirm_and_undo.confirm(
            token=token,
            reason=reason,
            principal=principal,
            now=now,
            route=route,
            limits=limits,
        )
    except Stale as refusal:
        if refusal.new_preview is not None:
            _enqueue_insertion(refusal.new_preview)
        raise
    enqueue_on_commit(partial(tasks.run_operation.delay, operation.pk))
    return operation


def undo(*, operation_id: int, principal: Principal, now: datetime) -> Operation:
    """Queue an operation that undoes another one, and enqueue its task."""
    operation = confirm_and_undo.undo(
        operation_id=operation_id, principal=principal, now=now
    )
    enqueue_on_commit(partial(tasks.run_operation.delay, operation.pk))
    return operation


def change_state(
    step: ControlStep,
    *,
    operation_id: int,
    reason: str = "",
    principal: Principal,
    now: datetime,
) -> Operation:
    """Pause, resume or cancel an operation; enqueue a run where there is work."""
    operation = control.change_state(
        step,
        operation_id=operation_id,
        reason=reason,
        principal=principal,
        now=now,
    )
    if operation.state in ACTIVE:
        enqueue_on_commit(partial(tasks.run_operation.delay, operation.pk))
    return operation


def _enqueue_insertion(operation: Operation) -> None:
    """Enqueue the task that inserts the items of a large preview."""
    if not operation.taken:
        enqueue_on_commit(partial(tasks.take_selection.delay, operation.pk))
