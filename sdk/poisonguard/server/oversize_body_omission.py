"""Bodies larger than the server takes: report the messages without their bodies.

Once the server has refused a body, others as large are reported without their bytes
for an hour; then one is tried whole again, since the limit may have been raised.
"""

from __future__ import annotations

import base64
import hashlib
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from poisonguard.contract import FailureReport, OversizeBody

# The server's limit may be raised meanwhile, so a body is tried whole after this.
TRIED_AGAIN_AFTER = 3_600.0
MOST_NAMED = 1_000
SHOWN = 200


class Oversize:
    """The size from which the server refuses bodies, and the messages so large."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end = math.inf
        self._known_until = 0.0
        self._messages: dict[tuple[str, str], int] = {}

    def fits(self, size: int) -> bool:
        """Tell whether Poisonweb may take a message body of this size."""
        return size < self._end or time.monotonic() >= self._known_until

    def note_refused_body(self, topic: str, bookmark: str, size: int) -> None:
        """Note the message and size of a report's body that Poisonweb refused."""
        with self._lock:
            if time.monotonic() >= self._known_until:
                self._end = math.inf
            self._end = min(self._end, size)
            self._known_until = time.monotonic() + TRIED_AGAIN_AFTER
            self._remember((topic, bookmark), size)

    def learn_from(self, report: FailureReport, answer: Mapping[str, Any]) -> None:
        """Update the size limit of bodies from Poisonweb's answer to a report.

        The report is of a failure.
        """
        key = report.topic, report.bookmark
        if answer.get("status") != "rejected":
            self._messages.pop(key, None)
        elif answer.get("pointer") == "/body":
            body = report.oversize_body
            self.note_refused_body(*key, body.size if body else len(report.body))

    def _remember(self, key: tuple[str, str], size: int) -> None:
        """Note the size of a message too large to report; forget the oldest.

        That is, those beyond MOST_NAMED.
        """
        self._messages.pop(key, None)
        self._messages[key] = size
        while len(self._messages) > MOST_NAMED:
            del self._messages[next(iter(self._messages))]

    @property
    def warning(self) -> str | None:
        """Describe messages too large to report, which stay with their broker.

        For a guard's health; None without any.
        """
        with self._lock:
            if not self._messages:
                return None
            (topic, bookmark), size = list(self._messages.items())[-1]
            return (
                f"{len(self._messages)} messages are too large for Poisonweb and stay"
                f" with their broker, the last one {bookmark[:SHOWN]!r} of {topic}"
                f" ({size} bytes): raise the limits there, or settle them by hand."
            )


def without_body(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a failure report's wire form, without its body."""
    body = base64.b64decode(item["body"])
    oversize_body = OversizeBody(size=len(body), sha256=hashlib.sha256(body).digest())
    rest = {name: value for name, value in item.items() if name != "body"}
    return {**rest, "oversize_body": oversize_body.to_wire()}


def explain_rejection(
    item: Mapping[str, Any], answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Turn the answer to an oversize message's report into a rejection with a reason.

    It says that the message stays with its broker; older servers do not.
    """
    size = item["oversize_body"]["size"]
    detail = (
        f"oversize: the body has {size} bytes, more than the server takes: the message"
        " stays with its broker; raise POISONWEB_REQUEST_LIMIT and POISONWEB_BODY_LIMIT"
        " there, or settle it by hand"
    )
    return {**answer, "status": "rejected", "detail": detail, "pointer": "/body"}
