"""A clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class ManualClock:
    """A clock in seconds that stands still until its `now` is changed."""

    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now
