"""Keeps a run from writing once another run has started."""

from __future__ import annotations

from django.db import connection

from apps.triage.errors import LockLost
from apps.triage.models import Operation


def fence(operation: Operation) -> None:
    """Raise LockLost if another run has started a newer epoch.

    The row lock is shared, so that one window can be claimed while another one is
    marked; a run that starts a new epoch waits for both.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM triage_operation WHERE id = %s AND epoch = %s FOR SHARE",
            [operation.pk, operation.epoch],
        )
        if not cursor.rowcount:
            raise LockLost
