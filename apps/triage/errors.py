"""Errors of decisions and of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apps.core.errors import Refused

if TYPE_CHECKING:
    from apps.triage.models import Operation


class Stale(Refused):
    """What was seen is no longer what would be done; look at the fresh preview."""

    def __init__(self, message: str, *, new_preview: Operation | None) -> None:
        super().__init__(message)
        self.new_preview = new_preview


class NotTaken(Refused):
    """The selection is still being taken; try again in a moment."""


class NotConverted(Refused):
    """The release before made it, and its items are not all here yet."""


class LockLost(Exception):
    """Another run has taken over this operation; this run must stop writing."""
