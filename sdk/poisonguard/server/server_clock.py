"""The server's clock, estimated from its answers."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from poisonguard.server.http_dates import seconds_since_1970

log = logging.getLogger(__name__)

SKEW_WARNED = 60.0
_SKEW_NOISE = 5.0  # `Date` has whole seconds, and an answer takes time


class ServerClock:
    """Tell the server's time, whatever our clock is set to.

    `skew` is how many seconds the server's clock is ahead of ours, None before its
    first answer.
    """

    def __init__(self) -> None:
        self.skew: float | None = None
        # The offset from the monotonic clock to the server's time.
        self._to_server = time.time() - time.monotonic()

    def now(self) -> datetime:
        """Return the Poisonweb server's time, as estimated from its answers.

        Before its first answer, this is the time of this machine's clock.
        """
        return datetime.fromtimestamp(time.monotonic() + self._to_server, UTC)

    def learn(self, date: str | None, *, asked_at: float) -> None:
        """Estimate the Poisonweb server's clock from the date of its answer.

        `asked_at` is monotonic. A date that is missing or unusable changes nothing.
        """
        there = seconds_since_1970(date)
        if there is None:
            return
        now, here = time.monotonic(), time.time()
        ahead = there + 0.5 - (here - (now - asked_at) / 2)
        before, self.skew = self.skew, ahead
        self._to_server = here - now + (ahead if abs(ahead) > _SKEW_NOISE else 0.0)
        if abs(self.skew) > SKEW_WARNED >= abs(before or 0.0):
            log.warning("%s", self.skew_warning)

    @property
    def skew_warning(self) -> str | None:
        """Describe how far this machine's clock is off the Poisonweb server's.

        It has the remedy; None when the clocks differ by little or no answer came yet.
        """
        if self.skew is None or abs(self.skew) <= SKEW_WARNED:
            return None
        way = "behind" if self.skew > 0 else "ahead of"
        return (
            f"The clock of this machine is {abs(self.skew):.0f} s {way} the server's:"
            " set it by NTP. Skips expire by the server's clock meanwhile."
        )
