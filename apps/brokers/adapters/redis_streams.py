"""Redis Streams, 6.2 or later: a topic is a stream and a message is its fields.

One field is the body (`body_field`) and the others are headers in their order; there
is no envelope (`redis_entries` keeps every entry byte for byte).

A topic and its dead-letter queue are on one server, in a cluster in one hash slot: a
message moves from the one to the other in one MULTI.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from redis.exceptions import ResponseError

from apps.brokers.adapters.redis_entries import (
    Entry,
    Fields,
    entries_of,
    join,
    pairs,
    seq_of,
    split,
)
from apps.brokers.adapters.redis_wire import (
    BLOCK_SECONDS,
    Answered,
    Argument,
    Command,
    Lost,
    Wire,
    is_passing,
    reason_of,
)
from apps.brokers.ports import (
    BATCH_BYTES,
    ConsumerPosition,
    DeadLetter,
    Outbound,
    Outcome,
    OutcomeKind,
)
from apps.brokers.vocabularies import poisonweb as vocabulary
from apps.core.errors import Invalid, Refused, Unavailable

SUFFIX = "-poison"
# Our consumer group on a dead-letter queue, its only consumer (the lane holds a lock),
# and the consumer that holds a message of another group while we dead-letter it.
OWN_GROUP = "poisonweb"
OWN_CONSUMER = "lane"
FENCE = b"poisonweb"

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisStreams:
    """Where one topic is and how it is read; a publisher needs no topic."""

    url: str = field(repr=False)
    topic: str = ""
    dead_letter_queue: str = ""
    body_field: str = "body"
    max_dequeue_count: int = 5
    visibility_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.body_field:
            raise Invalid("body_field", "name the field that holds the body.")
        if self.topic and not self.dead_letter_queue and self.topic.endswith(SUFFIX):
            remedy = f"{self.topic} looks like one itself: name it expressly."
            raise Invalid("dead_letter_queue", remedy)
        if self.topic and self.topic == self.dead_letter_queue:
            raise Invalid("dead_letter_queue", "must be another stream than the topic.")

    @classmethod
    def from_options(cls, options: Mapping[str, object], **settings: Any) -> Self:
        """Add a broker's free options, of which there is one: `body_field`."""
        unknown = set(options) - {"body_field"}
        if unknown:
            known = 'the only option of redis_streams is "body_field".'
            raise Invalid(
                "options", f"{', '.join(sorted(unknown))} is unknown: {known}"
            )
        body_field = options.get("body_field", "body")
        if not isinstance(body_field, str):
            raise Invalid("options", "body_field must be text.")
        return cls(body_field=body_field, **settings)

    @property
    def stream(self) -> bytes:
        return _key(self.topic)

    @property
    def queue(self) -> bytes:
        return _key(self.dead_letter_queue or self.topic + SUFFIX)


class RedisPublisher:
    """Publishes with XADD; Redis' reply with the new id is the confirmation."""

    def __init__(self, settings: RedisStreams) -> None:
        self._wire = Wire(settings.url)
        self._body_field = _key(settings.body_field)

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
        if len(fields) > MOST_FIELDS or sum(map(len, flat)) > LARGEST_STRING:
            return _refused(f"Redis takes {MOST_FIELDS} fields and 512 MB at most.")
        return [b"XADD", _key(message.topic), b"*", *flat]

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
        self._body_field = _key(settings.body_field)
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

    def acknowledge(self, bookmarks: Sequence[str]) -> None:
        if not bookmarks:
            return
        done = self._wire.together(
            ("XACK", self._queue, OWN_GROUP, *bookmarks),
            ("XDEL", self._queue, *bookmarks),
        )
        for reply in done:
            self._wire.accepted(reply, command=("XDEL", self._queue))

    def dead_letter_exhausted(self) -> int:
        # Sees to it that the queue is a stream: else the XADD of a MULTI would fail
        # and its XACK would stand.
        self._make_group()
        moved = 0
        for group in self._groups():
            now = _server_time(self._wire)
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
            _LOG.warning(what, len(gone), _text(self._queue))
            self.acknowledge([_text(entry.bookmark) for entry in gone])

    def _letter(self, entry: Entry) -> DeadLetter:
        body, headers = split(entry.fields, body_field=self._body_field)
        return DeadLetter(
            queue=_text(self._queue),
            bookmark=_text(entry.bookmark),
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
        stream, bookmark = self._settings.stream, _text(pending.bookmark)
        what = (
            "%s of %s was trimmed before it could be dead-lettered: its bytes are gone"
        )
        _LOG.warning(what, bookmark, _text(stream))
        self._wire.call("XACK", stream, pending.group, pending.bookmark)

    def _groups(self) -> list[bytes]:
        found = _optional(self._wire, "XINFO", "GROUPS", self._settings.stream)
        return [pairs(group)["name"] for group in found or ()]


class RedisTopicAdmin:
    """Looks at a stream with XINFO and XPENDING."""

    def __init__(self, settings: RedisStreams) -> None:
        self._wire = Wire(settings.url)
        self._settings = settings

    def consumers(self) -> list[ConsumerPosition]:
        stream = self._settings.stream
        # This brings the first and the last entry along; Redis has no call without.
        info = _optional(self._wire, "XINFO", "STREAM", stream)
        if info is None:
            return []
        head, now = pairs(info)["last-generated-id"], _server_time(self._wire)
        groups = self._wire.call("XINFO", "GROUPS", stream)
        return [self._position(pairs(group), head, now=now) for group in groups]

    def depth(self) -> int | None:
        return int(self._wire.call("XLEN", self._settings.queue))

    def close(self) -> None:
        self._wire.close()

    def _position(
        self, group: Mapping[str, Any], head: bytes, *, now: datetime
    ) -> ConsumerPosition:
        last = group["last-delivered-id"]
        oldest, consumers = self._details(group["name"])
        return ConsumerPosition(
            consumer_group=_text(group["name"]),
            bookmark=_text(last),
            seq=seq_of(last),
            head_bookmark=_text(head),
            head_seq=seq_of(head),
            # Redis counts it since 7.0; before, only "nothing is left" is certain.
            lag=0 if last == head else group.get("lag"),
            pending=group["pending"],
            oldest_pending_seconds=_age(oldest[0][0], now=now) if oldest else None,
            clients=sum(pairs(client)["name"] != FENCE for client in consumers),
        )

    def _details(self, group: bytes) -> tuple[Any, Any]:
        stream = self._settings.stream
        oldest = self._wire.call("XPENDING", stream, group, "-", "+", 1)
        return oldest, self._wire.call("XINFO", "CONSUMERS", stream, group)


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


def _optional(wire: Wire, *command: Argument) -> Any:
    """Ask about a key that need not be there; None then."""
    try:
        return wire.call(*command)
    except Answered as error:
        if error.code == "ERR" and "no such key" in str(error):
            return None
        raise


def _server_time(wire: Wire) -> datetime:
    # Idle times are the server's, so is this: our clock may be another.
    seconds, microseconds = map(int, wire.call("TIME"))
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def _age(bookmark: bytes, *, now: datetime) -> float:
    milliseconds = int(bookmark.partition(b"-")[0])
    return max(0.0, now.timestamp() - milliseconds / 1000)


def _outcome(reply: Any) -> Outcome:
    if isinstance(reply, Lost):
        return Outcome(kind=OutcomeKind.UNKNOWN, detail=reply.reason)
    if isinstance(reply, ResponseError):
        return _refused(f"Redis refuses it: {reason_of(reply)}")
    return Outcome(kind=OutcomeKind.SENT, bookmark=_text(reply))


def _refused(detail: str) -> Outcome:
    return Outcome(kind=OutcomeKind.REFUSED, detail=detail)


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
