"""Read an outbox's current `SweeperState`, or `silent` if no sweeper noted one."""

from __future__ import annotations

from datetime import datetime

from apps.outbox.models import SWEEPER_LIVES, Outbox
from apps.outbox.sweeper_and_row_states import SweeperState

# Instead of what the sweeper noted last, once it notes nothing any more.
SILENT = "silent"


def state_of(outbox: Outbox, *, now: datetime) -> str:
    """Return the state of an outbox's sweeper, as pages show it.

    It is `paused` for a paused outbox, and `silent` where no sweeper noted a state
    lately.
    """
    activity = outbox.activity
    if outbox.is_paused:
        return SweeperState.PAUSED.value
    if activity.noted_at is None or now - activity.noted_at > SWEEPER_LIVES:
        return SILENT
    return activity.state
