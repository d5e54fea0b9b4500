"""Find the rows for which a statement fails, by halving what it is run for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from poisonguard.outbox.sweeping.psycopg_import import psycopg
from poisonguard.outbox.sweeping.row_claims import is_of_row

Row = TypeVar("Row")
# So many rows that fail alone while none passes, nor one farther on or elsewhere: their
# table is at fault, not they.
MOST_FAILURES = 8


@dataclass(slots=True)
class Bisection(Generic[Row]):
    """Rows that passed, and those that failed alone, with their errors."""

    passed: list[Row] = field(default_factory=list)
    failed: list[tuple[Row, Exception]] = field(default_factory=list)


def bisect(
    rows: Sequence[Row],
    run: Callable[[Sequence[Row]], None],
    passes_elsewhere: Callable[[], bool] = lambda: False,
) -> Bisection[Row]:
    """Run a statement for all rows; where it fails, for halves, down to single rows.

    Return the rows that passed, and those that failed alone. Raises what is no fault of
    single rows. Where all seem to fail, `passes_elsewhere` is asked whether the
    statement passes for a row that is not among these.
    """
    result, parts = Bisection[Row](), [rows]
    while parts:
        part = parts.pop()
        if not part:
            continue
        try:
            run(part)
        except psycopg.Error as error:
            if not is_of_row(error):
                raise
            if len(part) > 1:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            result.failed.append((part[0], error))
            if (
                len(result.failed) == MOST_FAILURES
                and not result.passed
                and not (_passes_farther_on(parts, run, result) or passes_elsewhere())
            ):
                raise
        else:
            result.passed += part
    return result


def _passes_farther_on(
    parts: list[Sequence[Row]],
    run: Callable[[Sequence[Row]], None],
    result: Bisection[Row],
) -> bool:
    """Run a statement for the last row of each part; True once it passes for one.

    That row moves from its part to the rows that passed.
    """
    for place, part in enumerate(parts):
        try:
            run(part[-1:])
        except psycopg.Error as error:
            if not is_of_row(error):
                raise
        else:
            result.passed += part[-1:]
            parts[place] = part[:-1]
            return True
    return False
