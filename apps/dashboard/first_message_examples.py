"""Examples of a first message, to copy into a terminal."""

from __future__ import annotations

import base64
import uuid
from datetime import datetime

DEAD_LETTER = """\
redis-cli XADD orders-poison '*' \\
  body '{"id": 13}' \\
  x-poison-cause fatal \\
  x-exception-type ValueError \\
  x-exception-message 'no such customer' \\
  x-consumer-group billing"""


def failure(*, now: datetime) -> dict[str, object]:
    """Return an example of a failure report to copy from a page.

    It is one that POST /api/v1/failures takes.
    """
    at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "report_id": str(uuid.uuid4()),
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "bookmark": "1",
        "body": base64.b64encode(b'{"id": 13}').decode(),
        "headers": [],
        "cause": "fatal",
        "exception": {
            "type": "ValueError",
            "message": "no such customer",
            "traceback": "",
        },
        "attempts": 1,
        "failures": 1,
        "crashes": 0,
        "first_failed_at": at,
        "failed_at": at,
    }
