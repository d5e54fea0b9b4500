"""COPY rows into a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db.backends.utils import CursorWrapper


def copy_rows(
    cursor: CursorWrapper,
    table: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[object]],
) -> None:
    """COPY rows into a table; the columns are given with their types."""
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    # Django turns the errors of `execute` into its own, but not those of a COPY.
    with cursor.db.wrap_database_errors, cursor.copy(statement) as copy:
        copy.set_types(list(columns.values()))
        for row in rows:
            copy.write_row(row)
