"""Notify every web process at once, over one channel of Postgres.

Postgres delivers a notice when its transaction commits. A process that misses one finds
the same in the rows.
"""

from __future__ import annotations

import json
from typing import Any

from django.db import connection

CHANNEL = "poisonweb"
SKIPS = "skips"
FENCE = "fence"


def notify_skips(*, topic_id: int) -> None:
    """NOTIFY processes that a topic's skip list has a new revision."""
    _notify({SKIPS: topic_id})


def notify_fence(*, topic: str, client_name: str, sub_id: str, epoch: int) -> None:
    """NOTIFY the holder of a position that the position has a later epoch."""
    _notify(
        {
            FENCE: {
                "client_name": client_name,
                "sub_id": sub_id,
                "topic": topic,
                "epoch": epoch,
            }
        }
    )


def _notify(notice: dict[str, Any]) -> None:
    """Send a notice as JSON on the channel of Postgres."""
    # Postgres allows 8,000 bytes; names of 255 characters stay far below in UTF-8.
    text = json.dumps(notice, ensure_ascii=False, separators=(",", ":"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, text])
