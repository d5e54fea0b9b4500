"""How long to wait before the next try."""

from __future__ import annotations

import random

MOST_DOUBLINGS = 10


def delay(troubles: int, *, base: float, cap: float) -> float:
    """Draw the random seconds that Poisonweb waits after so many troubles in a row.

    Full jitter with a floor (AWS Architecture Blog: back-off and jitter): clients that
    lost a server at one time must not all retry at one time.
    """
    highest = min(cap, base * 2 ** min(troubles, MOST_DOUBLINGS))
    return base + random.uniform(0, highest)  # noqa: S311 - no secret
