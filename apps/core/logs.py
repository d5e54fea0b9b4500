"""One log record, one line, whatever a message's text holds (ASVS 16.4.1)."""

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


class Line(logging.Formatter):
    """Format a record with everything that could break or forge a line escaped.

    A message is cut at its end, a traceback in its middle.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        stamp = moment.isoformat(timespec="milliseconds")
        message = cut(record.getMessage(), first=LONGEST_MESSAGE)
        text = f"{stamp} {record.levelname} {record.name} {message}"
        if record.exc_info:
            half = LONGEST_TRACEBACK // 2
            trace = self.formatException(record.exc_info)
            text += " " + cut(trace, first=half, last=half)
        return text.encode("utf-8", "replace").decode().translate(ESCAPES)


def cut(text: str, *, first: int, last: int = 0) -> str:
    """Keep some characters of the beginning and the end, and count the others."""
    left_out = len(text) - first - last
    if left_out <= 0:
        return text
    return (
        f"{text[:first]}… ({left_out} characters left out) {text[len(text) - last :]}"
    )


class WithoutTraceback(logging.Filter):
    """Leave out the traceback of what a stranger does and nobody has to mend."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


class Sparing(logging.Filter):
    """Let some lines of a logger through in any window of time, for each process.

    The first line after a window that was full says how many were left out.
    """

    def __init__(self, *, lines: int, seconds: float) -> None:
        super().__init__()
        self._lines, self._seconds = lines, seconds
        self._ends = float("-inf")
        self._number = 0
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            left_out = self._begin_window() if time.monotonic() >= self._ends else 0
            self._number += 1
            passes = self._number <= self._lines
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} such lines were left out)"
            record.args = ()
        return passes

    def _begin_window(self) -> int:
        """Give how many lines the window that ends left out."""
        left_out = max(0, self._number - self._lines)
        self._ends, self._number = time.monotonic() + self._seconds, 0
        return left_out
