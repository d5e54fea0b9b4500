"""Decide how a consumer process died, and which of its messages to charge."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Literal
from uuid import UUID

from poisonguard.contract import Cause
from poisonguard.journal.journal_binary_format import (
    Ending,
    EndingKind,
    JournalSnapshot,
    OwnerState,
)

UNSEEN = "The process ended without a word"


class Blame(Enum):
    """What a death means for the messages that were in flight."""

    CHARGED = auto()  # only one was in flight: it is the cause
    SUSPECTED = auto()  # one of several is the cause: run each alone
    EXCUSED = auto()  # the process was stopped, or the host went down


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """The end of a consumer process with messages in flight.

    `incarnation` identifies the process, so that no death is counted twice. `stacks`
    are the stacks of its threads, where it died of a hang.
    """

    incarnation: UUID
    numbers: tuple[int, ...]
    blame: Blame
    cause: Literal[Cause.CRASH, Cause.HANG]
    reason: str
    at: datetime
    stacks: str = ""

    @property
    def charged(self) -> bool:
        return self.blame is Blame.CHARGED


def judge(
    snapshot: JournalSnapshot,
    *,
    boot: UUID,
    oom_kills: int,
    at: datetime,
    stacks: str = "",
) -> Death:
    """Return how a process died and what that means for its messages in flight.

    `boot` and `oom_kills` are the host's boot id and count of OOM kills now.
    """
    excuse = _excuse(snapshot, boot)
    hung = snapshot.ending.kind is EndingKind.HANG and not excuse
    numbers = snapshot.hanging if hung else snapshot.in_flight
    killed = oom_kills > snapshot.header.oom_kills
    return Death(
        incarnation=snapshot.header.incarnation,
        numbers=numbers,
        blame=Blame.EXCUSED if excuse else _blame(numbers),
        cause=Cause.HANG if hung else Cause.CRASH,
        reason=excuse or _reason(snapshot.ending, killed=killed),
        at=snapshot.ending.at or at,
        stacks=stacks if hung else "",
    )


def _excuse(snapshot: JournalSnapshot, boot: UUID) -> str:
    """Return why a process's death is no message's doing, "" where it may be."""
    if snapshot.header.owner.boot != boot:
        return "The host went down"
    if snapshot.state == OwnerState.STOPPING:
        return "The process was told to stop"
    return ""


def _blame(numbers: tuple[int, ...]) -> Blame:
    """Return how to blame the messages in flight at a death without excuse."""
    if len(numbers) == 1:
        return Blame.CHARGED
    return Blame.SUSPECTED if numbers else Blame.EXCUSED


def _reason(ending: Ending, *, killed: bool) -> str:
    """Describe for people how a process ended; `killed`: by the kernel, perhaps."""
    match ending.kind:
        case EndingKind.HANG:
            seconds = ending.value / 1000
            return f"The handler was stuck for {seconds:g} s; the process was killed"
        case EndingKind.EXIT:
            return f"The process ended with exit code {ending.value}"
        case EndingKind.MEMORY:
            return "The process was killed by the kernel for lack of memory (OOM)"
        case EndingKind.SIGNAL:
            return f"The process was killed by {signal_name(ending.value)}"
        case EndingKind.UNSEEN if killed:
            return f"{UNSEEN}; the kernel has killed for lack of memory (OOM) since"
        case EndingKind.UNSEEN:
            return UNSEEN


def signal_name(number: int) -> str:
    """Return a signal's name, as "SIGKILL", or "signal 35" for one without."""
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
