"""Pause between tries."""

from __future__ import annotations

import random

from poisonguard.policy import double_pause


class Backoff:
    """Random pauses between tries, so that many clients do not retry together.

    A server that returns is noticed within `cap` seconds.
    """

    def __init__(self, *, floor: float = 0.1, first: float = 0.5, cap: float = 1.0):
        self._floor, self._first, self._cap = floor, first, cap
        self._tries = 0

    def reset(self) -> None:
        """Begin again with short pauses between tries to reach Poisonweb."""
        self._tries = 0

    def next(self) -> float:
        """Draw the seconds until the next try to reach Poisonweb.

        Their limit doubles each time, up to `cap`.
        """
        longest = double_pause(self._first, self._tries, cap=self._cap)
        self._tries += 1
        return random.uniform(self._floor, longest)  # noqa: S311 # no secret
