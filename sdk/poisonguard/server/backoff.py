"""Pauses between tries."""

from __future__ import annotations

import random


class Backoff:
    """Random pauses between tries, so that many clients do not retry together.

    A server that returns is noticed within `cap` seconds.
    """

    def __init__(self, *, floor: float = 0.1, first: float = 0.5, cap: float = 1.0):
        self._floor, self._first, self._cap = floor, first, cap
        self._longest = first

    def reset(self) -> None:
        self._longest = self._first

    def next(self) -> float:
        longest = self._longest
        self._longest = min(self._cap, longest * 2)
        return random.uniform(self._floor, longest)  # noqa: S311 # no secret
