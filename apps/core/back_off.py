"""How long to wait before the next try."""

from __future__ import annotations

import random

from poisonguard.policy import double_pause


def delay(troubles: int, *, base: float, cap: float) -> float:
    """Draw the random seconds that Poisonweb waits after so many troubles in a row.

    Full jitter with a floor (AWS Architecture Blog: back-off and jitter): clients that
    lost a server at one time must not all retry at one time.
    """
    highest = double_pause(base, troubles, cap=cap)
    return base + random.uniform(0, highest)  # noqa: S311 - no secret
