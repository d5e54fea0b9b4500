"""Tell senders that something is due, over a channel of Postgres.

A sender that misses a notice finds the same in the rows, with its next look.
"""

from __future__ import annotations

from django.db import connection

CHANNEL = "poisonweb_deliveries"


def notify_due(*, endpoint_id: int) -> None:
    """NOTIFY senders that deliveries of an endpoint are due.

    Postgres commits notices one after the other: send few, for many deliveries.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, str(endpoint_id)])
