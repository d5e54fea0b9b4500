"""Errors of a sign-in."""

from __future__ import annotations

from datetime import timedelta

from apps.core.errors import PoisonwebError

BUSY = timedelta(seconds=5)


class TooManySignIns(PoisonwebError):
    """Too many people sign in at the moment: try again in a few seconds."""

    def __init__(self, delay: timedelta = BUSY, message: str | None = None) -> None:
        super().__init__(message)
        self.delay = delay
