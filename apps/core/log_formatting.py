"""Write each log record on one line, whatever its text contains (ASVS 16.4.1)."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime

ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
ESCAPES |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
# A right-to-left override or a line separator would let a message forge its log line.
ESCAPES |= {
    code: f"\\u{code:04x}"
    for code in (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


# In characters. A skip, a query or an error of a broker may hold a megabyte.
LONGEST_MESSAGE = 4_096
LONGEST_TRACEBACK = 16_384


class LineFormatter(logging.Formatter):
    """Format a record as one line; escape all that could break or forge a line.

    Cut a long message at its end, a long traceback in its middle.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record and its traceback as one line of limited length."""
        moment = datetime.fromtimestamp(record.created, UTC)
        stamp = moment.isoformat(timespec="milliseconds")
        message = shorten(record.getMessage(), first=LONGEST_MESSAGE)
        text = f"{stamp} {record.levelname} {record.name} {message}"
        if record.exc_info:
            half = LONGEST_TRACEBACK // 2
            trace = self.formatException(record.exc_info)
            text += " " + shorten(trace, first=half, last=half)
        return text.encode("utf-8", "replace").decode().translate(ESCAPES)


def shorten(text: str, *, first: int, last: int = 0) -> str:
    """Cut a long text for the log, and say in it how many characters were cut.

    Its `first` characters stay, and its `last` ones.
    """
    left_out = len(text) - first - last
    if left_out <= 0:
        return text
    return (
        f"{text[:first]}… ({left_out} characters left out) {text[len(text) - last :]}"
    )


class WithoutTraceback(logging.Filter):
    """Drop tracebacks of errors that clients cause and no operator has to fix."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Strip the traceback from a log record; let every record pass."""
        record.exc_info = record.exc_text = None
        return True


class RateLimitFilter(logging.Filter):
    """Limit the lines of a logger in each window of time, for each process.

    The first line after a full window says how many lines were left out.
    """

    def __init__(self, *, lines: int, seconds: float) -> None:
        super().__init__()
        self._lines, self._seconds = lines, seconds
        self._window_ends_at = float("-inf")
        self._count = 0
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass a log record unless its time window has its number of lines already.

        The first record of a window says how many the last window left out.
        """
        with self._lock:
            left_out = (
                self._begin_window() if time.monotonic() >= self._window_ends_at else 0
            )
            self._count += 1
            passes = self._count <= self._lines
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} such lines were left out)"
            record.args = ()
        return passes

    def _begin_window(self) -> int:
        """Start a window of log lines; return how many the last one left out."""
        left_out = max(0, self._count - self._lines)
        self._window_ends_at, self._count = time.monotonic() + self._seconds, 0
        return left_out
