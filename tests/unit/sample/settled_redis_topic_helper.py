"""Tell whether consumers have settled all messages of a Redis topic."""

from __future__ import annotations

from typing import Any

from redis import Redis


def is_settled(redis: Redis, topic: str) -> bool:
    """Tell whether its one consumer group has settled all that a topic holds."""
    groups: Any = redis.xinfo_groups(topic) if redis.exists(topic) else []
    newest: Any = redis.xrevrange(topic, count=1)
    return any(
        not group["pending"] and [group["last-delivered-id"]] == [i for i, _ in newest]
        for group in groups
    )
