"""Redis Streams, 6.2 or later: a topic is a stream and a message is its fields.

One field is the body (`body_field`) and the others are headers in their order; there
is no envelope (`redis_entries` keeps every entry byte for byte).

A topic and its dead-letter queue are on one server, in a cluster in one hash slot: a
message moves from the one to the other in one MULTI.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from redis.exceptions import ResponseError

from apps.brokers.adapters.adapter import BrokerSettings, TopicSettings
from apps.brokers.adapters.redis_admin import RedisBrokerAdmin, RedisTopicAdmin
from apps.brokers.adapters.redis_entries import (
    SEQ_BITS,
    Entry,
    Fields,
    entries_of,
    join,
    pairs,
    split,
)
from apps.brokers.adapters.redis_settings import (
    FENCE,
    RedisStreams,
    key,
    settings_of,
    text,
)
from apps.brokers.adapters.redis_wire import (
    BLOCK_SECONDS,
    Answered,
    Argument,
    Command,
    Lost,
    Wire,
    is_passing,
    optional,
    reason_of,
    server_time,
)
from apps.brokers.ports import (
    BATCH_BYTES,
    Capabilities,
    Counting,
    DeadLetter,
    Durability,
    Headers,
    Ordering,
    Outbound,
    Outcome,
    OutcomeKind,
)
from apps.brokers.vocabularies import poisonweb as vocabulary
from apps.core.errors import Refused, Unavailable

# Our group on a dead-letter queue, and its only consumer: the lane holds a lock.
OWN_GROUP = "poisonweb"
OWN_CONSUMER = "lane"

# How many entries of unknown size are asked for at once while a queue is large.
CAREFUL_STEP = 16
# A longer queue is taken for large: entries of several MB would not fit so often.
MEASURED_LENGTH = 10_000
DEAD_LETTER_PAGE = 1_000

# What Redis takes in one string and in one command; beyond that it drops the whole
# connection, and every other message on it.
LARGEST_STRING = 512 * 2**20
MOST_FIELDS = 500_000

_LOG = logging.getLogger(__name__)


CAPABILITIES = Capabilities(
    max_message=LARGEST_STRING,
    counts_headers=True,
    headers=Headers.BYTES,
    most_headers=MOST_FIELDS - 1,
    ordering=Ordering.TOPIC,
    dedupe_window=0,
    # It answers before it writes, and writes to disk once a second at the most usual.
    durability=Durability.PAGE_CACHE,
    delay=0,
    peeks=True,
    extends=False,
    counting=Counting.BROKER,
    dead_letters_itself=False,
    delivered=True,
    seq_bits=SEQ_BITS,
)


class RedisAdapter:
    """Speaks to Redis through `redis_wire`, never through redis-py's commands."""

    capabilities = CAPABILITIES

    def publisher(self, broker: BrokerSettings) -> RedisPublisher:
        return RedisPublisher(settings_of(broker))

    def dead_letter_reader(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> RedisDeadLetterReader:
        return RedisDeadLetterReader(settings_of(broker, topic))

    def topic_admin(
        self, broker: BrokerSettings, topic: TopicSettings
    ) -> RedisTopicAdmin:
        return RedisTopicAdmin(settings_of(broker, topic))

    def broker_admin(self, broker: BrokerSettings) -> RedisBrokerAdmin:
        return RedisBrokerAdmin(settings_of(broker))

    def ordering(self, topic: str) -> Ordering:
        return CAPABILITIES.ordering


ADAPTER = RedisAdapter()


class RedisPublisher:
    """Publishes with XADD; Redis' reply with the new id is the confirmation."""

    def __init__(self, settings: RedisStreams) -> None:
        self._wire = Wire(settings.url)
        self._body_field = key(settings.body_field)

    def publish(self, messages: Sequence[Outbound]) -> list[Outcome]:
        plans = [self._plan(message) for message in messages]
        commands = [plan for plan in plans if not isinstance(plan, Outcome)]
        answers = iter(self._send(commands))
        return [plan if isinstance(plan, Outcome) else next(answers) for plan in plans]

    def close(self) -> None:
        self._wire.close()

    def _plan(self, message: Outbound) -> Command | Outcome:
        fields = join(message.body, message.headers, body_field=self._body_field)
        flat = [part for pair in fields for part in pair]
        if not flat:
            return _refused("A message without body and headers is no stream entry.")
        size = len(message.body) + sum(len(n) + len(v) for n, v in message.headers)
        if len(fields) > MOST_FIELDS or size > LARGEST_STRING:
            return _refused(f"Redis takes {MOST_FIELDS} fields and 512 MB at most.")
        return [b"XADD", key(message.topic), b"*", *flat]

    def _send(self, commands: Sequence[Command]) -> list[Outcome]:
        replies = self._wire.exchange(commands) if commands else []
        if replies and all(is_passing(reply) for reply in replies):
            raise Unavailable(f"Redis takes no message now: {reason_of(replies[0])}")
        return [_outcome(reply) for reply in replies]


class RedisDeadLetterReader:
    """Reads a dead-letter queue in a consumer group of our own.

    The cursor goes through what this group was handed before (after a restart), then
    on to new entries. It never goes back by itself: what was handed out and is left
    unacknowledged stays behind it and blocks nothing.
    """

    BEGINNING = b"0-0"
    NEW = b">"

    def __init__(self, settings: RedisStreams) -> None:
        self._wire = Wire(settings.url)
        self._settings = settings
        self._queue = settings.queue
        self._body_field = key(settings.body_field)
        self._cursor = self.BEGINNING
        self._largest = 1
        self._looked_at: dict[bytes, bytes] = {}

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        try:
            return self._batch(limit, wait)
        except Unavailable:
            # A reply that was lost on the way is ours all the same: read it again.
            self._cursor = self.BEGINNING
            raise

    def peek(self, *, limit: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        start, size = "-", 0
        while len(letters) < limit and size < BATCH_BYTES:
            count = min(CAREFUL_STEP, limit - len(letters))
            reply = self._wire.call("XRANGE", self._queue, start, "+", "COUNT", count)
            seen = [self._letter(entry) for entry in entries_of(reply)]
            if not seen:
                break
            letters += seen
            size += sum(letter.size for letter in seen)
            start = f"({letters[-1].bookmark}"
        return letters

    def acknowledge(self, handles: Sequence[str]) -> None:
        if not handles:
            return
        done = self._wire.together(
            ("XACK", self._queue, OWN_GROUP, *handles),
            ("XDEL", self._queue, *handles),
        )
        for reply in done:
            self._wire.accepted(reply, command=("XDEL", self._queue))

    def extend(self, handles: Sequence[str]) -> None:
        """Nothing hides an entry from others, so nothing has to be kept up."""

    def release(self, handles: Sequence[str]) -> None:
        """They are in the queue all the time, and a new reader begins with them."""

    def dead_letter_exhausted(self) -> int:
        # Sees to it that the queue is a stream: else the XADD of a MULTI would fail
        # and its XACK would stand.
        self._make_group()
        moved = 0
        for group in self._groups():
            now = server_time(self._wire)
            for pending in self._exhausted(group):
                moved += self._dead_letter(pending, now=now)
        return moved

    def close(self) -> None:
        self._wire.close()

    def _batch(self, limit: int, wait: float) -> list[DeadLetter]:
        step, size, letters = self._step(limit), 0, list[DeadLetter]()
        while len(letters) < limit and size < BATCH_BYTES:
            count = min(step, limit - len(letters))
            entries = self._fetch(count, 0 if letters else wait)
            if not entries:
                break
            fresh = [self._letter(entry) for entry in entries]
            letters += fresh
            size += sum(letter.size for letter in fresh)
        self._largest = max((letter.size for letter in letters), default=1)
        return letters

    def _step(self, limit: int) -> int:
        """Decide how many entries may be asked for at once, their sizes being unknown.

        A queue that fits into a batch is read in one go. Entries that were handed out
        before may be what killed this process: they come one by one.
        """
        length, size = int(self._wire.call("XLEN", self._queue)), 0
        # Redis walks through the whole stream to measure it.
        if length <= MEASURED_LENGTH:
            measure = ("MEMORY", "USAGE", self._queue, "SAMPLES", 0)
            size = int(self._wire.call(*measure) or 0)
            if size <= BATCH_BYTES:
                return limit
        if self._cursor != self.NEW:
            return 1
        likely = max(self._largest, size // max(1, length))
        return max(1, min(CAREFUL_STEP, BATCH_BYTES // likely))

    def _fetch(self, count: int, wait: float) -> list[Entry]:
        """Return the next entries; none at the end of what there is."""
        while self._cursor != self.NEW:
            handed_out = self._ask(count, 0)
            self._cursor = handed_out[-1].bookmark if handed_out else self.NEW
            entries = [entry for entry in handed_out if entry.fields]
            self._forget([entry for entry in handed_out if not entry.fields])
            if entries:
                return entries
        return self._ask(count, wait)

    def _ask(self, count: int, wait: float) -> list[Entry]:
        block = int(min(wait, BLOCK_SECONDS) * 1000)
        command: list[Argument] = ["XREADGROUP", "GROUP", OWN_GROUP, OWN_CONSUMER]
        command += ["COUNT", count]
        # BLOCK 0 would wait for ever.
        command += ["BLOCK", block] if block > 0 else []
        command += ["STREAMS", self._queue, self._cursor]
        try:
            reply = self._wire.call(*command)
        except Answered as error:
            # The first read of all, or the queue was deleted meanwhile; since Redis 7
            # UNBLOCKED tells that of a queue deleted while we waited.
            if error.code not in {"NOGROUP", "UNBLOCKED"}:
                raise
            self._make_group()
            reply = self._wire.call(*command)
        return entries_of(reply[0][1]) if reply else []

    def _forget(self, gone: Sequence[Entry]) -> None:
        if gone:
            what = "%d dead letters of %s were removed by others before we read them"
            _LOG.warning(what, len(gone), text(self._queue))
            self.acknowledge([text(entry.bookmark) for entry in gone])

    def _letter(self, entry: Entry) -> DeadLetter:
        body, headers = split(entry.fields, body_field=self._body_field)
        return DeadLetter(
            queue=text(self._queue),
            bookmark=text(entry.bookmark),
            body=body,
            headers=headers,
            size=len(body) + sum(len(part) for header in headers for part in header),
        )

    def _make_group(self) -> None:
        try:
            self._wire.call("XGROUP", "CREATE", self._queue, OWN_GROUP, "0", "MKSTREAM")
        except Answered as error:
            if error.code != "BUSYGROUP":
                raise

    def _exhausted(self, group: bytes) -> list[_Pending]:
        """Look at the next page of a group's overdue entries, for those used up."""
        start = self._looked_at.get(group, b"-")
        idle = int(self._settings.visibility_timeout * 1000)
        page = self._wire.call(
            *("XPENDING", self._settings.stream, group, "IDLE", idle),
            *(start, "+", DEAD_LETTER_PAGE),
        )
        full = len(page) == DEAD_LETTER_PAGE
        self._looked_at[group] = b"(" + page[-1][0] if full else b"-"
        found = (_Pending(group, *fields) for fields in page)
        limit = self._settings.max_dequeue_count
        return [pending for pending in found if pending.dequeue_count >= limit]

    def _dead_letter(self, pending: _Pending, *, now: datetime) -> bool:
        """Move one message, unless a consumer took it since we looked.

        1. Claim it, which fails when it is no longer overdue: nobody else gets it now.
        2. In one MULTI, add it to the queue and settle it for its group. Killed in
           between, it is pending under our name and overdue again after the timeout.
        """
        stream, idle = self._settings.stream, self._settings.visibility_timeout
        claim: Command = (
            *("XCLAIM", stream, pending.group, FENCE, int(idle * 1000)),
            *(pending.bookmark, "JUSTID"),
        )
        find: Command = ("XRANGE", stream, pending.bookmark, pending.bookmark)
        replies = self._wire.exchange([claim, find])
        claimed = self._wire.accepted(replies[0], command=claim)
        found = self._wire.accepted(replies[1], command=find)
        if not claimed:
            return False
        if not found:
            self._settle_trimmed(pending)
            return False
        return self._move(pending, entries_of(found)[0], now=now)

    def _move(self, pending: _Pending, entry: Entry, *, now: datetime) -> bool:
        story = _story(pending, now=now)
        fields = [part for pair in (*entry.fields, *story) for part in pair]
        settle = ("XACK", self._settings.stream, pending.group, pending.bookmark)
        try:
            added, _ = self._wire.together(("XADD", self._queue, "*", *fields), settle)
        except Refused as error:
            _LOG.warning("A message was not dead-lettered: %s", error)
            return False
        if isinstance(added, ResponseError):
            # A MULTI goes on after an error: settled, but in no queue. Undo that.
            self._wire.call(
                *("XCLAIM", self._settings.stream, pending.group, pending.client, 0),
                *(pending.bookmark, "RETRYCOUNT", pending.dequeue_count),
                *("FORCE", "JUSTID"),
            )
            _LOG.warning("A message was not dead-lettered: %s", reason_of(added))
            return False
        return True

    def _settle_trimmed(self, pending: _Pending) -> None:
        stream, bookmark = self._settings.stream, text(pending.bookmark)
        what = (
            "%s of %s was trimmed before it could be dead-lettered: its bytes are gone"
        )
        _LOG.warning(what, bookmark, text(stream))
        self._wire.call("XACK", stream, pending.group, pending.bookmark)

    def _groups(self) -> list[bytes]:
        found = optional(self._wire, "XINFO", "GROUPS", self._settings.stream)
        return [pairs(group)["name"] for group in found or ()]


@dataclass(frozen=True, slots=True)
class _Pending:
    """What XPENDING says of one message, in its order."""

    group: bytes
    bookmark: bytes
    client: bytes
    idle_ms: int
    dequeue_count: int


def _story(pending: _Pending, *, now: datetime) -> Fields:
    """Write down why the message is in the queue."""
    return vocabulary.exhausted(
        bookmark=pending.bookmark,
        consumer_group=pending.group,
        # Pending under our own name: we were killed here before, its client is lost.
        client_name=b"" if pending.client == FENCE else pending.client,
        attempts=pending.dequeue_count,
        failed_at=now - timedelta(milliseconds=pending.idle_ms),
    )


def _outcome(reply: Any) -> Outcome:
    if isinstance(reply, Lost):
        return Outcome(kind=OutcomeKind.UNKNOWN, detail=reply.reason)
    if isinstance(reply, ResponseError):
        return _refused(f"Redis refuses it: {reason_of(reply)}")
    return Outcome(kind=OutcomeKind.SENT, bookmark=text(reply))


def _refused(detail: str) -> Outcome:
    return Outcome(kind=OutcomeKind.REFUSED, detail=detail)
