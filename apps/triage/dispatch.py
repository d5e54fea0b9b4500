"""The doors' way in: a decision, and the word to the workers once it is committed.

The word may be lost (a broker that is away, a crash): `rescue` finds the row.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from functools import partial

from apps.core.after_commit import tell
from apps.team.rights import Principal
from apps.triage import tasks
from apps.triage.models import Operation
from apps.triage.services import decision, selection
from apps.triage.services.selection import Ask


def preview(*, ask: Ask, principal: Principal, now: datetime) -> Operation:
    operation = selection.preview(ask=ask, principal=principal, now=now)
    if not operation.taken:
        tell(partial(tasks.take_selection.delay, operation.pk))
    return operation


def confirm(
    *, token: uuid.UUID, reason: str, principal: Principal, now: datetime
) -> Operation:
    operation = decision.confirm(
        token=token, reason=reason, principal=principal, now=now
    )
    tell(partial(tasks.run_operation.delay, operation.pk))
    return operation


def undo(*, operation_id: int, principal: Principal, now: datetime) -> Operation:
    operation = decision.undo(operation_id=operation_id, principal=principal, now=now)
    tell(partial(tasks.run_operation.delay, operation.pk))
    return operation
