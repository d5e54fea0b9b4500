"""Errors of runs that cannot start, or end without a report."""

from __future__ import annotations

from apps.core.errors import PoisonwebError, Refused


class RunInTheWay(Refused):
    """Another run has to end first: `run_id`, or None if it just did."""

    def __init__(self, message: str, *, run_id: int | None) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunFailed(PoisonwebError):
    """The run failed; `log` is the end of its job's log."""

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class Unreconciled(RunFailed):
    """The report's numbers differ from those of Postgres: nothing was published."""


class TakenOver(PoisonwebError):
    """Another start of the same run has taken over."""
