"""Write rows as CSV (RFC 4180) in which no cell can run as a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

# Characters that begin a formula in some program, also in full width. Also a quote, so
# that ours can be told from it; and a space, which some programs drop.
_FORMULA = tuple("=+-@\t\r\n\0 '＝＋－＠")  # noqa: RUF001 - these characters are intended
ROWS_AT_ONCE = 500


def lines(header: Iterable[str], rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Yield the bytes of a CSV file of these rows, many rows at a time.

    A cell that a spreadsheet would run as a formula begins with a ', which a reader of
    the file removes.
    """
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
    """Put ' before a CSV cell that a spreadsheet would run as a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _drain(buffer: StringIO) -> bytes:
    """Return the CSV text in the buffer so far, and empty the buffer."""
    content = buffer.getvalue().encode()
    buffer.seek(0)
    buffer.truncate()
    return content
