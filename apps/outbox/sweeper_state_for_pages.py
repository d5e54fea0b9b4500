"""Read an outbox's `SweeperState`, or `silent` if no sweeper noted one, as of now."""

from __future__ import annotations

from datetime import datetime

from apps.outbox.models import SWEEPER_LIVES, Outbox, OutboxActivity
from apps.outbox.sweeper_and_row_states import SweeperState

# Instead of what the sweeper noted last, once it notes nothing any more.
SILENT = "silent"


def state_of(outbox: Outbox, *, now: datetime) -> str:
    """Return the state of an outbox's sweeper, as pages show it.

    It is `paused` for a paused outbox, and `silent` where no sweeper noted a state
    lately. A sweeper has time to make its first note after its outbox is added.
    """
    activity = outbox.activity
    if outbox.is_paused:
        return SweeperState.PAUSED.value
    if now - (activity.noted_at or outbox.created_at) > SWEEPER_LIVES:
        return SILENT
    return activity.state


def has_old_counts(activity: OutboxActivity, *, now: datetime) -> bool:
    """Tell whether an outbox's rows were counted too long ago to be those of now."""
    return activity.counted_at is not None and now - activity.counted_at > SWEEPER_LIVES
