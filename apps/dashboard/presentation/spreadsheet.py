"""Rows as a CSV file (RFC 4180) in which no cell is taken for a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

# What begins a formula somewhere, in full width too. A quote is told from one of ours
# by doubling it, and a space because some readers leave it out.
_FORMULA = tuple("=+-@\t\r\n\0 '＝＋－＠")  # noqa: RUF001 - they are what is meant
ROWS_AT_ONCE = 500


def lines(header: Iterable[str], rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Write the file piece by piece; whoever reads it takes one leading ' away."""
    buffer = StringIO()
    writer = csv.writer(buffer)
    writer.writerow(header)
    for number, row in enumerate(rows, start=1):
        writer.writerow([_cell(value) for value in row])
        if number % ROWS_AT_ONCE == 0:
            yield _drain(buffer)
    if buffer.tell():
        yield _drain(buffer)


def _cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _drain(buffer: StringIO) -> bytes:
    content = buffer.getvalue().encode()
    buffer.seek(0)
    buffer.truncate()
    return content
