"""A ramp: growing steps, each only while the consumers handle what the last ones sent.

The steps are numbers of messages: 1, 5, 20, 100 sends 1, then 5 more, and so on; each
step after the last is five times the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Any, Self

from apps.core.errors import Invalid
from apps.poison.states import RedriveOutcome

DEFAULT_STEPS = (1, 5, 20, 100)
GROWTH = 5
MOST_STEPS = 20
LARGEST_STEP = 1_000_000
LONGEST_WAIT = timedelta(hours=1)

# The broker took the message, and its consumer may confirm it.
_CONFIRMABLE = (
    RedriveOutcome.SENT.value,
    RedriveOutcome.CONFIRMED.value,
    RedriveOutcome.RECURRED.value,
)
# What was moved may only come back.
_SENT = (*_CONFIRMABLE, RedriveOutcome.MOVED.value)
_HANDED_OVER = (
    *_SENT,
    RedriveOutcome.SENDING.value,
    RedriveOutcome.UNKNOWN.value,
    RedriveOutcome.REFUSED.value,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ramp:
    """The steps, and what they must show before the next one.

    At least `confirmed` percent of what was sent to its own topic is confirmed within
    `wait` seconds. If `confirmed` is None, or messages were moved to other topics,
    which are never confirmed, `wait` seconds have passed. At most `came_back` percent
    of all that was sent came back, and less than half of what was tried was refused.
    """

    steps: tuple[int, ...] = DEFAULT_STEPS
    confirmed: int | None = 95
    came_back: int = 0
    wait: int = 300

    def __post_init__(self) -> None:
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise Invalid("ramp/steps", f"give 1 to {MOST_STEPS} steps")
        if not all(1 <= step <= LARGEST_STEP for step in self.steps):
            raise Invalid("ramp/steps", f"each step is 1 to {LARGEST_STEP:,} messages")
        if self.confirmed is not None and not 1 <= self.confirmed <= 100:
            raise Invalid("ramp/confirmed", "give 1 to 100 percent, or null")
        if not 0 <= self.came_back <= 100:
            raise Invalid("ramp/came_back", "give 0 to 100 percent")
        if not 1 <= self.wait <= LONGEST_WAIT.total_seconds():
            raise Invalid(
                "ramp/wait", f"give 1 to {LONGEST_WAIT.total_seconds():.0f} seconds"
            )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the ramp that `to_json` wrote."""
        return cls(**{**value, "steps": tuple(value["steps"])})

    def to_json(self) -> dict[str, Any]:
        """Return the ramp as an operation stores it."""
        return {**asdict(self), "steps": list(self.steps)}

    def end_of_step(self, handed_over: int) -> int:
        """Return how many messages the ramp lets be handed over, in all, until a check.

        It is the first end of a step beyond what has been handed over.
        """
        end = 0
        for number in count():
            end += self._step(number)
            if end > handed_over:
                return end
        raise AssertionError("unreachable")  # pragma: no cover

    def _step(self, number: int) -> int:
        """Return how many messages the step of a ramp with this number sends.

        After the listed steps, each is GROWTH times as large as the one before.
        """
        last = len(self.steps) - 1
        beyond = max(0, number - last)
        return self.steps[min(number, last)] * int(GROWTH**beyond)


@dataclass(frozen=True, kw_only=True, slots=True)
class RampCheck:
    """What a ramp allows now: so many more messages; else why it waits or pauses."""

    room: int = 0
    waits_for: str = ""
    pauses_because: str = ""


def handed_over_number(counts: Mapping[str, int]) -> int:
    """Count the items, of counts by standing, whose messages brokers may have."""
    return sum(counts[name] for name in _HANDED_OVER)


def check(
    ramp: Ramp,
    counts: Mapping[str, int],
    *,
    ramp_to: int,
    waits_since: datetime | None,
    now: datetime,
) -> RampCheck:
    """Check by an operation's counts whether its ramp sends, waits or pauses.

    Returns the room for messages, or why the operation waits or pauses. All is counted
    since the ramp began: `counts` are by standing, `ramp_to` is how many messages the
    steps so far allow, and `waits_since` the time at which that many had been handed
    over.
    """
    handed_over = handed_over_number(counts)
    step_is_over = 0 < ramp_to <= handed_over
    if why := _why_not_further(ramp, counts, step_is_over=step_is_over):
        return RampCheck(pauses_because=why)
    if handed_over < ramp_to:
        return RampCheck(room=ramp_to - handed_over)
    if ramp_to > 0:
        waited = timedelta() if waits_since is None else now - waits_since
        time_is_up = waited >= timedelta(seconds=ramp.wait)
        obstacle = _unconfirmed(ramp, counts, time_is_up=time_is_up)
        if obstacle is None and not time_is_up and _must_wait(ramp, counts):
            waits_for = f"waits {ramp.wait} s for messages that come back"
            obstacle = RampCheck(waits_for=waits_for)
        if obstacle is not None:
            return obstacle
    return RampCheck(room=ramp.end_of_step(handed_over) - handed_over)


def _why_not_further(
    ramp: Ramp, counts: Mapping[str, int], *, step_is_over: bool
) -> str:
    """Say why an operation's ramp pauses: too many came back, or were refused.

    Refusals count once a step is over. Of growing steps, one that is refused as a whole
    is at least half of all.
    """
    sent_number = sum(counts[name] for name in _SENT)
    came_back = counts[RedriveOutcome.RECURRED]
    if sent_number and came_back * 100 > ramp.came_back * sent_number:
        return (
            f"{came_back:,} of {sent_number:,} came back, more than {ramp.came_back} %"
        )
    handed_over = handed_over_number(counts)
    refused = counts[RedriveOutcome.REFUSED]
    if step_is_over and refused and refused * 2 >= handed_over:
        return f"{refused:,} of {handed_over:,} were refused"
    return ""


def _unconfirmed(
    ramp: Ramp, counts: Mapping[str, int], *, time_is_up: bool
) -> RampCheck | None:
    """Wait or pause where too few messages were confirmed that consumers may confirm.

    None where enough were, or the ramp does not go by that.
    """
    confirmable = sum(counts[name] for name in _CONFIRMABLE)
    confirmed = counts[RedriveOutcome.CONFIRMED]
    if ramp.confirmed is None or confirmed * 100 >= ramp.confirmed * confirmable:
        return None
    if not time_is_up:
        waits_for = f"waits for {ramp.confirmed} % of {confirmable:,} to be confirmed"
        return RampCheck(waits_for=waits_for)
    return RampCheck(
        pauses_because=f"{confirmed:,} of {confirmable:,} were confirmed "
        f"within {ramp.wait} s, less than {ramp.confirmed} %"
    )


def _must_wait(ramp: Ramp, counts: Mapping[str, int]) -> bool:
    """Tell whether only time shows that the messages of a step are handled.

    It does where the ramp says so, where messages were moved, and where none was sent.
    """
    sent_number = sum(counts[name] for name in _SENT)
    has_moved = counts[RedriveOutcome.MOVED] > 0
    return ramp.confirmed is None or sent_number == 0 or has_moved
