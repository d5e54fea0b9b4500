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

# The broker took the message, so that its consumer may answer.
_SENT = (
    RedriveOutcome.SENT.value,
    RedriveOutcome.CONFIRMED.value,
    RedriveOutcome.RECURRED.value,
)
_HANDED_OVER = (
    *_SENT,
    RedriveOutcome.SENDING.value,
    RedriveOutcome.UNKNOWN.value,
    RedriveOutcome.REFUSED.value,
    RedriveOutcome.MOVED.value,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ramp:
    """The steps, and what they must show before the next one.

    At least `confirmed` percent of what was sent is confirmed within `wait` seconds. If
    `confirmed` is None, `wait` seconds have passed. At most `came_back` percent of it
    came back.
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


def check(
    ramp: Ramp,
    counts: Mapping[str, int],
    *,
    ramp_to: int,
    waits_since: datetime | None,
    now: datetime,
) -> RampCheck:
    """Check by an operation's counts whether its ramp sends, waits or pauses.

    Returns the room for messages, or why the operation waits or pauses. `ramp_to` is
    the number of messages that the present step allows in all, and `waits_since` the
    time at which that many had been handed over.
    """
    sent_number = sum(counts[name] for name in _SENT)
    came_back = counts[RedriveOutcome.RECURRED]
    if sent_number and came_back * 100 > ramp.came_back * sent_number:
        return RampCheck(
            pauses_because=f"{came_back:,} of {sent_number:,} came back, more than "
            f"{ramp.came_back} %"
        )
    handed_over = sum(counts[name] for name in _HANDED_OVER)
    if handed_over < ramp_to:
        return RampCheck(room=ramp_to - handed_over)
    if ramp_to == 0:
        return RampCheck(room=ramp.end_of_step(0))
    waited = timedelta() if waits_since is None else now - waits_since
    is_over = waited >= timedelta(seconds=ramp.wait)
    if ramp.confirmed is None:
        passed = is_over
        waits_for = f"waits {ramp.wait} s for messages that come back"
    else:
        confirmed = counts[RedriveOutcome.CONFIRMED]
        passed = confirmed * 100 >= ramp.confirmed * sent_number
        waits_for = f"waits for {ramp.confirmed} % of {sent_number:,} to be confirmed"
        if is_over and not passed:
            return RampCheck(
                pauses_because=f"{confirmed:,} of {sent_number:,} were confirmed "
                f"within {ramp.wait} s, less than {ramp.confirmed} %"
            )
    if not passed:
        return RampCheck(waits_for=waits_for)
    return RampCheck(room=ramp.end_of_step(handed_over) - handed_over)
