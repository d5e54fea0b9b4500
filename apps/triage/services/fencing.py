"""Keep a run from writing once another has started, and read what people want."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from apps.triage.errors import LockLost
from apps.triage.operation_states import OperationState


@dataclass(frozen=True, slots=True)
class Orders:
    """What people want of the operation now: its state, and messages per second."""

    state: OperationState
    rate: int | None

    @property
    def may_go_on(self) -> bool:
        return self.state is OperationState.RUNNING


def fence(*, operation: int, run: int) -> Orders:
    """Return an operation's state and rate, as people set them, to its newest run.

    Raises LockLost for a run after which a newer one started. Until the transaction
    ends, no decision about the operation is made.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, rate FROM triage_operation WHERE id = %s AND run = %s"
            " FOR NO KEY UPDATE",
            [operation, run],
        )
        row = cursor.fetchone()
    if row is None:
        raise LockLost
    return Orders(OperationState(row[0]), row[1])
