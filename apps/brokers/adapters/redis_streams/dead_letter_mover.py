"""Dead-lettering of messages that consumers received too often and did not settle.

Redis counts the deliveries of a message, and leaves the rest to its readers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from redis.exceptions import ResponseError

from apps.brokers.adapters.redis_streams.entries import (
    Fields,
    RedisEntry,
    entries_of,
    pairs,
)
from apps.brokers.adapters.redis_streams.redis_connection import (
    Command,
    RedisWire,
    call_or_none,
    reason_of,
    server_time,
)
from apps.brokers.adapters.redis_streams.settings import FENCE, RedisSettings, text
from apps.brokers.failure_headers import own_documented_headers as vocabulary
from apps.core.errors import Refused

DEAD_LETTER_PAGE = 1_000

_LOG = logging.getLogger(__name__)


class RedisDeadLettering:
    """Moves the messages of one stream that were handed out too often.

    The dead-letter queue must already be a stream.
    """

    def __init__(self, wire: RedisWire, settings: RedisSettings) -> None:
        self._wire = wire
        self._settings = settings
        self._queue = settings.queue
        self._looked_at: dict[bytes, bytes] = {}

    def move(self) -> int:
        """Move a page of each group's exhausted messages; return how many."""
        moved = 0
        for group in self._group_names():
            now = server_time(self._wire)
            for pending in self._used_up(group):
                moved += self._dead_letter(pending, now=now)
        return moved

    def _used_up(self, group: bytes) -> list[_Pending]:
        """Return exhausted messages among the next page of a group's overdue ones."""
        start = self._looked_at.get(group, b"-")
        idle = int(self._settings.visibility_timeout * 1000)
        page = self._wire.call(
            *("XPENDING", self._settings.stream, group, "IDLE", idle),
            *(start, "+", DEAD_LETTER_PAGE),
        )
        full = len(page) == DEAD_LETTER_PAGE
        self._looked_at[group] = b"(" + page[-1][0] if full else b"-"
        entries = (_Pending(group, *fields) for fields in page)
        limit = self._settings.max_dequeue_count
        return [pending for pending in entries if pending.dequeue_count >= limit]

    def _dead_letter(self, pending: _Pending, *, now: datetime) -> bool:
        """Move a message to the dead-letter queue, unless a consumer took it.

        1. Claim it, which fails when it is no longer overdue: no other consumer gets it
           now. A trimmed message is overdue without bytes; from Redis 7 on, claiming
           it settles it.
        2. In one MULTI, add it to the queue and settle it for its group. After a kill
           in between, it is pending under our name and overdue after the timeout.
        """
        stream, idle = self._settings.stream, self._settings.visibility_timeout
        least, only = int(idle * 1000), (pending.bookmark, pending.bookmark)
        commands: list[Command] = [
            ("XPENDING", stream, pending.group, "IDLE", least, *only, 1),
            ("XCLAIM", stream, pending.group, FENCE, least, pending.bookmark, "JUSTID"),
            ("XRANGE", stream, *only),
        ]
        replies = zip(self._wire.transaction(*commands), commands, strict=True)
        is_overdue, claimed, entries = (
            self._wire.checked(reply, command=command) for reply, command in replies
        )
        if is_overdue and not entries:
            self._settle_trimmed(pending)
        if not claimed or not entries:
            return False
        return self._move(pending, entries_of(entries)[0], now=now)

    def _move(self, pending: _Pending, entry: RedisEntry, *, now: datetime) -> bool:
        """Add a message to the queue, settle it; return False if Redis refused."""
        story = _story_headers(pending, now=now)
        fields = [part for pair in (*entry.fields, *story) for part in pair]
        settle = ("XACK", self._settings.stream, pending.group, pending.bookmark)
        try:
            added, _ = self._wire.transaction(
                ("XADD", self._queue, "*", *fields), settle
            )
        except Refused as error:
            _LOG.warning("A message was not dead-lettered: %s", error)
            return False
        if isinstance(added, ResponseError):
            # A MULTI goes on after an error: the message is settled, but in no queue.
            # Undo that.
            self._wire.call(
                *("XCLAIM", self._settings.stream, pending.group, pending.client, 0),
                *(pending.bookmark, "RETRYCOUNT", pending.dequeue_count),
                *("FORCE", "JUSTID"),
            )
            _LOG.warning("A message was not dead-lettered: %s", reason_of(added))
            return False
        return True

    def _settle_trimmed(self, pending: _Pending) -> None:
        """Settle an exhausted message that Redis' stream trimmed, and log that."""
        stream, bookmark = self._settings.stream, text(pending.bookmark)
        what = (
            "%s of %s was trimmed before it could be dead-lettered: its bytes are gone"
        )
        _LOG.warning(what, bookmark, text(stream))
        self._wire.call("XACK", stream, pending.group, pending.bookmark)

    def _group_names(self) -> list[bytes]:
        """List the names of the topic's consumer groups."""
        groups = call_or_none(self._wire, "XINFO", "GROUPS", self._settings.stream)
        return [pairs(group)["name"] for group in groups or ()]


@dataclass(frozen=True, slots=True)
class _Pending:
    """The fields of one message in the reply of XPENDING, in its order."""

    group: bytes
    bookmark: bytes
    client: bytes
    idle_ms: int
    dequeue_count: int


def _story_headers(pending: _Pending, *, now: datetime) -> Fields:
    """Write the headers that say why Redis' adapter dead-letters a message."""
    return vocabulary.headers_of_exhausted(
        bookmark=pending.bookmark,
        consumer_group=pending.group,
        # We were killed here before and hold it ourselves: its client is unknown.
        client_name=b"" if pending.client == FENCE else pending.client,
        attempts=pending.dequeue_count,
        failed_at=now - timedelta(milliseconds=pending.idle_ms),
    )
