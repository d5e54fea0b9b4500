"""Unbroken runs of numbers, both ends included, and how Postgres keeps them.

The numbers of one publisher are 0 .. `LAST`: Postgres writes the end of a range as the
number after it, and that must be a bigint too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from psycopg.types.multirange import Multirange

LAST = 2**63 - 2
# The watermark before anything is settled: the place before the first number.
NOWHERE = -1

Run = tuple[int, int]
Runs = tuple[Run, ...]

# Generic for the type checker only; Django's own class takes no parameter.
if TYPE_CHECKING:
    RunsBase = models.Field[Any, Any]
else:
    RunsBase = models.Field


def up_to(seq: int) -> Runs:
    """Return the run of all sequence numbers up to this one; () for `NOWHERE`."""
    return () if seq < 0 else ((0, seq),)


def watermark(runs: Runs) -> int:
    """Return a mark's watermark: the end of its settled run from 0, or `NOWHERE`."""
    return runs[0][1] if runs and runs[0][0] == 0 else NOWHERE


def size(runs: Runs) -> int:
    """Count the sequence numbers in the runs."""
    return sum(high - low + 1 for low, high in runs)


def holds(runs: Runs, seq: int) -> bool:
    """Tell whether a sequence number lies in one of the runs."""
    return any(low <= seq <= high for low, high in runs)


def as_text(runs: Runs) -> str:
    """Write runs of sequence numbers as Postgres' multirange, merged or not."""
    return "{" + ",".join([f"[{low},{high}]" for low, high in runs]) + "}"


def from_postgres(value: Multirange[int]) -> Runs:
    """Convert Postgres' multirange to runs, whose ends are included."""
    # Postgres returns canonical ranges: lower end included, upper end excluded.
    return tuple((run.lower or 0, (run.upper or 0) - 1) for run in value)


class RunsField(RunsBase):
    """Runs in ascending order, none of them touching another (int8multirange)."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 - Django's signature
        """Return the Postgres type of a column of runs."""
        return "int8multirange"

    def get_prep_value(self, value: Runs | None) -> str | None:
        """Write the runs as text for Postgres."""
        return None if value is None else as_text(value)

    def from_db_value(self, value: Multirange[int] | None, *_: object) -> Runs | None:
        """Convert a value that Postgres returned to runs."""
        return None if value is None else from_postgres(value)
