"""`SweeperState`, and what other states an outbox and its rows can have."""

from __future__ import annotations

from enum import StrEnum


class SweeperState(StrEnum):
    """The state of an outbox, as its sweeper notes it every second.

    Waiting: another sweeper empties it. Broken: one error came again and again, so that
    the sweeper tries less often.
    """

    SWEEPING = "sweeping"
    WAITING = "waiting"
    SLOWED = "slowed"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    PAUSED = "paused"


class QuarantineState(StrEnum):
    """What a quarantined row became, as far as it was decided here.

    Released: its outbox sends it. Sent: its message was sent from triage instead.
    """

    QUARANTINED = "quarantined"
    DROPPED = "dropped"
    RELEASED = "released"
    SENT = "sent"


# No later decision about its message concerns the row.
FINAL = (QuarantineState.RELEASED.value, QuarantineState.SENT.value)
