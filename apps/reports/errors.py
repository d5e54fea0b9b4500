"""Why a run ends without a report."""

from __future__ import annotations

from apps.core.errors import PoisonwebError


class RunFailed(PoisonwebError):
    """The run failed; `log` is the end of what its job said."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Unreconciled(RunFailed):
    """The report's numbers are not those of Postgres: nothing was published."""


class TakenOver(PoisonwebError):
    """Another start of the same run has taken over."""
