"""Read a dead-letter queue in a consumer group of our own; remove what is settled."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from apps.brokers.adapter_contract import BATCH_BYTES, DeadLetter
from apps.brokers.adapters.redis_streams.dead_letter_mover import RedisDeadLettering
from apps.brokers.adapters.redis_streams.entries import (
    RedisEntry,
    entries_of,
    split_body,
)
from apps.brokers.adapters.redis_streams.redis_connection import (
    BLOCK_SECONDS,
    Argument,
    RedisRejected,
    RedisWire,
)
from apps.brokers.adapters.redis_streams.settings import RedisSettings, key, text
from apps.core.errors import Unavailable

# Our group on a dead-letter queue, and its only consumer: the lane holds a lock.
OWN_GROUP = "poisonweb"
OWN_CONSUMER = "lane"

# Number of entries of unknown size to ask for at once in a large queue.
CAREFUL_STEP = 16
# A longer queue counts as large, since it cannot be measured often.
MEASURED_LENGTH = 10_000

_LOG = logging.getLogger(__name__)


class RedisDeadLetterReader:
    """Reader of a dead-letter queue in a consumer group of our own.

    The cursor passes the entries that this group received before (after a restart),
    then the new ones. It never goes back by itself: an unacknowledged entry stays
    behind it and blocks nothing.
    """

    BEGINNING = b"0-0"
    NEW = b">"

    def __init__(self, settings: RedisSettings) -> None:
        self._wire = RedisWire(settings.url, dial=settings.dial)
        self._queue = settings.queue
        self._body_field = key(settings.body_field)
        self._cursor = self.BEGINNING
        self._largest = 1
        self._dead_lettering = RedisDeadLettering(self._wire, settings)

    def read(self, *, limit: int, wait: float) -> list[DeadLetter]:
        """Return the next dead letters; wait at most `wait` seconds for the first."""
        try:
            return self._read_batch(limit, wait)
        except Unavailable:
            # The entries of a lost reply are pending for us: read them again.
            self._cursor = self.BEGINNING
            raise

    def peek(self, *, limit: int) -> list[DeadLetter]:
        """Return the queue's first dead letters; change nothing."""
        letters: list[DeadLetter] = []
        start, size = "-", 0
        while len(letters) < limit and size < BATCH_BYTES:
            count = min(CAREFUL_STEP, limit - len(letters))
            reply = self._wire.call("XRANGE", self._queue, start, "+", "COUNT", count)
            page = [self._letter(entry) for entry in entries_of(reply)]
            if not page:
                break
            letters += page
            size += sum(letter.size for letter in page)
            start = f"({letters[-1].bookmark}"
        return letters

    def acknowledge(self, handles: Sequence[str]) -> None:
        """Settle and delete these dead letters of the queue."""
        if not handles:
            return
        done = self._wire.transaction(
            ("XACK", self._queue, OWN_GROUP, *handles),
            ("XDEL", self._queue, *handles),
        )
        for reply in done:
            self._wire.checked(reply, command=("XDEL", self._queue))

    def extend(self, handles: Sequence[str]) -> None:
        """Do nothing: Redis has no timeout here, no other reader sees these letters."""

    def release(self, handles: Sequence[str]) -> None:
        """Do nothing: letters stay in Redis' queue, a new reader begins with them."""

    def dead_letter_exhausted(self) -> int:
        """Move the topic's exhausted messages to the dead-letter queue; count them."""
        # Make sure that the queue is a stream, or the XADD of a MULTI would fail while
        # its XACK succeeds.
        self._make_group()
        return self._dead_lettering.move()

    def close(self) -> None:
        """Close the connection to Redis."""
        self._wire.close()

    def _read_batch(self, limit: int, wait: float) -> list[DeadLetter]:
        """Read Redis' dead letters until they are enough, or the queue is empty."""
        step, size, letters = self._next_step(limit), 0, list[DeadLetter]()
        while len(letters) < limit and size < BATCH_BYTES:
            count = min(step, limit - len(letters))
            entries = self._fetch(count, 0 if letters else wait)
            if not entries:
                break
            new_letters = [self._letter(entry) for entry in entries]
            letters += new_letters
            size += sum(letter.size for letter in new_letters)
        self._largest = max((letter.size for letter in letters), default=1)
        return letters

    def _next_step(self, limit: int) -> int:
        """Return how many dead letters of unknown size to ask Redis for at once.

        A queue that fits into a batch is read in one go. Entries that were handed out
        before may have killed this process, so they are read one by one.
        """
        length, size = int(self._wire.call("XLEN", self._queue)), 0
        # MEMORY USAGE walks through the whole stream.
        if length <= MEASURED_LENGTH:
            measure = ("MEMORY", "USAGE", self._queue, "SAMPLES", 0)
            size = int(self._wire.call(*measure) or 0)
            if size <= BATCH_BYTES:
                return limit
        if self._cursor != self.NEW:
            return 1
        likely = max(self._largest, size // max(1, length))
        return max(1, min(CAREFUL_STEP, BATCH_BYTES // likely))

    def _fetch(self, count: int, wait: float) -> list[RedisEntry]:
        """Return the queue's next entries; [] at the end of the queue."""
        while self._cursor != self.NEW:
            handed_out = self._read_once(count, 0)
            self._cursor = handed_out[-1].bookmark if handed_out else self.NEW
            entries = [entry for entry in handed_out if entry.fields]
            self._settle_deleted([entry for entry in handed_out if not entry.fields])
            if entries:
                return entries
        return self._read_once(count, wait)

    def _read_once(self, count: int, wait: float) -> list[RedisEntry]:
        """Read Redis' dead letters once for our group; create the group if missing."""
        block = int(min(wait, BLOCK_SECONDS) * 1000)
        command: list[Argument] = ["XREADGROUP", "GROUP", OWN_GROUP, OWN_CONSUMER]
        command += ["COUNT", count]
        # BLOCK 0 would wait for ever.
        command += ["BLOCK", block] if block > 0 else []
        command += ["STREAMS", self._queue, self._cursor]
        try:
            reply = self._wire.call(*command)
        except RedisRejected as error:
            # This is the very first read, or the queue was deleted meanwhile; since
            # Redis 7, UNBLOCKED reports a queue deleted while we waited.
            if error.code not in {"NOGROUP", "UNBLOCKED"}:
                raise
            self._make_group()
            reply = self._wire.call(*command)
        return entries_of(reply[0][1]) if reply else []

    def _settle_deleted(self, entries: Sequence[RedisEntry]) -> None:
        """Settle dead letters that others deleted from Redis' queue, and log them."""
        if entries:
            what = "%d dead letters of %s were removed by others before we read them"
            _LOG.warning(what, len(entries), text(self._queue))
            self.acknowledge([text(entry.bookmark) for entry in entries])

    def _letter(self, entry: RedisEntry) -> DeadLetter:
        """Convert an entry of the stream to a dead letter."""
        body, headers = split_body(entry.fields, body_field=self._body_field)
        return DeadLetter(
            queue=text(self._queue),
            bookmark=text(entry.bookmark),
            body=body,
            headers=headers,
            size=len(body) + sum(len(part) for header in headers for part in header),
        )

    def _make_group(self) -> None:
        """Make our consumer group and the dead-letter queue, unless they exist."""
        try:
            self._wire.call("XGROUP", "CREATE", self._queue, OWN_GROUP, "0", "MKSTREAM")
        except RedisRejected as error:
            if error.code != "BUSYGROUP":
                raise
