"""Admin ports of a stream and of a Redis as a whole, which change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from apps.brokers.adapter_contract import ConsumerPosition, Delivered, FoundTopic
from apps.brokers.adapters.redis_streams.entries import entries_of, pairs
from apps.brokers.adapters.redis_streams.redis_connection import (
    Argument,
    RedisWire,
    call_or_none,
    server_time,
)
from apps.brokers.adapters.redis_streams.settings import (
    FENCE,
    SUFFIX,
    RedisSettings,
    text,
)
from apps.brokers.redis_stream_ids import seq_of

SCAN_PAGE = 1_000
MOST_TOPICS = 10_000


class RedisTopicAdmin:
    """Admin of a stream, by XINFO and XPENDING."""

    def __init__(self, settings: RedisSettings) -> None:
        self._wire = RedisWire(settings.url, dial=settings.dial)
        self._settings = settings

    def consumers(self) -> list[ConsumerPosition]:
        """Return the position of each consumer group; [] without the stream."""
        stream = self._settings.stream
        # The reply includes the first and the last entry; no other call omits them.
        info = call_or_none(self._wire, "XINFO", "STREAM", stream)
        if info is None:
            return []
        head, now = pairs(info)["last-generated-id"], server_time(self._wire)
        groups = self._wire.call("XINFO", "GROUPS", stream)
        return [self._position(pairs(group), head, now=now) for group in groups]

    def depth(self) -> int | None:
        """Count the entries of the topic's dead-letter stream."""
        return int(self._wire.call("XLEN", self._settings.queue))

    def oldest_at(self) -> datetime | None:
        """Return when the oldest dead letter was added; None if empty."""
        queue = self._settings.queue
        entries = entries_of(self._wire.call("XRANGE", queue, "-", "+", "COUNT", 1))
        return _moment_of(entries[0].bookmark) if entries else None

    def delivered(self) -> Delivered | None:
        """Add up the deliveries to all groups, which Redis counts since 7.0."""
        groups = (
            call_or_none(self._wire, "XINFO", "GROUPS", self._settings.stream) or ()
        )
        read_counts = [pairs(group).get("entries-read") for group in groups]
        counts = [count for count in read_counts if count is not None]
        if not counts or len(counts) < len(read_counts):
            return None
        return Delivered(total=sum(counts), at=server_time(self._wire))

    def close(self) -> None:
        """Close the connection to Redis."""
        self._wire.close()

    def _position(
        self, group: Mapping[str, Any], head: bytes, *, now: datetime
    ) -> ConsumerPosition:
        """Build the position of a Redis consumer group, with its lag and pending."""
        last = group["last-delivered-id"]
        oldest, consumers = self._details(group["name"])
        return ConsumerPosition(
            consumer_group=text(group["name"]),
            bookmark=text(last),
            seq=seq_of(last),
            head_bookmark=text(head),
            head_seq=seq_of(head),
            # Redis counts it since 7.0; before, only a lag of 0 is certain.
            lag=0 if last == head else group.get("lag"),
            pending=group["pending"],
            oldest_pending_seconds=_seconds_since(oldest[0][0], now=now)
            if oldest
            else None,
            clients=sum(pairs(client)["name"] != FENCE for client in consumers),
        )

    def _details(self, group: bytes) -> tuple[Any, Any]:
        """Ask Redis for a group's oldest pending entry, and for its consumers."""
        stream = self._settings.stream
        oldest = self._wire.call("XPENDING", stream, group, "-", "+", 1)
        return oldest, self._wire.call("XINFO", "CONSUMERS", stream, group)


class RedisBrokerAdmin:
    """Admin of one server, by INFO and SCAN; in a cluster, of the configured node."""

    def __init__(self, settings: RedisSettings) -> None:
        self._wire = RedisWire(settings.url, dial=settings.dial)

    def ping(self) -> str:
        """Connect to Redis, and name its version."""
        info = text(self._wire.call("INFO", "server"))
        facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        return f"Redis {facts.get('redis_version', 'of an unknown version')}"

    def discover(self) -> list[FoundTopic]:
        """List Redis' streams as topics, each with its dead-letter queue."""
        depths = {text(key): self._length(key) for key in sorted(self._streams())}
        return [
            FoundTopic(
                name=name,
                depth=depth,
                dead_letter_queue=queue if queue in depths else "",
                dead_letters=depths.get(queue),
            )
            for name, depth in depths.items()
            if not _is_queue_of_another(name, depths)
            for queue in [name + SUFFIX]
        ]

    def close(self) -> None:
        """Close the connection to Redis."""
        self._wire.close()

    def _streams(self) -> set[bytes]:
        """Scan Redis for streams; one that comes or goes meanwhile may be missed."""
        streams: set[bytes] = set()
        cursor: Argument = "0"
        while True:
            page = ("SCAN", cursor, "TYPE", "stream", "COUNT", SCAN_PAGE)
            cursor, keys = self._wire.call(*page)
            streams.update(keys)
            if cursor == b"0" or len(streams) >= MOST_TOPICS:
                return streams

    def _length(self, key: bytes) -> int:
        """Count the entries of a stream."""
        return int(self._wire.call("XLEN", key))


def _is_queue_of_another(name: str, depths: Mapping[str, int]) -> bool:
    """Tell whether a stream is the dead-letter queue of another of these streams."""
    return name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in depths


def _seconds_since(bookmark: bytes, *, now: datetime) -> float:
    """Return the seconds since an entry was added to its stream."""
    return max(0.0, now.timestamp() - _milliseconds(bookmark) / 1000)


def _moment_of(bookmark: bytes) -> datetime | None:
    """Return when an entry was added to its stream; None for an id without time."""
    try:
        return datetime.fromtimestamp(_milliseconds(bookmark) / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _milliseconds(bookmark: bytes) -> int:
    """Return the milliseconds since 1970 in the id of a stream's entry."""
    return int(bookmark.partition(b"-")[0])
