"""The texts of reports about quarantined rows.

A text names the row and its writer, and errors name more that is different in each row.
Rows of one cause are one problem: `cause_in` is what their texts have in common.
"""

from __future__ import annotations

import re

EXCEPTION_TYPE = "QuarantinedOutboxRow"
_ROW = re.compile(r"\. Row [0-9]+, written by: ")
# The parts of an error of Postgres that name values of the row.
_PARTS = re.compile(r"\s(?:DETAIL|HINT|CONTEXT|QUERY|LINE [0-9]+):\s")
# Behind these are numbers, times and bytes of one row.
_CAUSES = re.compile(
    r"(?:two messages under one id|it cannot be read|headers cannot be read"
    r"|(?:producer|message_id|topic|key) is not UTF-8)(?=:)"
)


def report_text(*, reason: str, row_id: int, writer: str) -> str:
    """Return the text of a report: why a row is not sent, and who wrote it."""
    return f"{reason}. Row {row_id}, written by: {writer}"


def cause_in(text: str) -> str:
    """Cut what is of one row off a quarantine report's text; return its cause.

    The texts of all rows of one cause have that in common.
    """
    reason = _PARTS.split(_ROW.split(text, maxsplit=1)[0], maxsplit=1)[0]
    cause = _CAUSES.match(reason)
    return cause.group() if cause else reason
