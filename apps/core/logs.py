"""One log record, one line, whatever a message's text holds (ASVS 16.4.1)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
ESCAPES |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
# A right-to-left override or a line separator would let a message forge its log line.
ESCAPES |= {
    code: f"\\u{code:04x}"
    for code in (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}


class Line(logging.Formatter):
    """Format a record with everything that could break or forge a line escaped."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        stamp = moment.isoformat(timespec="milliseconds")
        text = f"{stamp} {record.levelname} {record.name} {record.getMessage()}"
        if record.exc_info:
            text += " " + self.formatException(record.exc_info)
        return text.encode("utf-8", "replace").decode().translate(ESCAPES)
