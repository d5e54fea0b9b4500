"""Reads a dead-letter queue as our own group of it, and removes what is settled."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from apps.brokers.adapters.redis_streams.dead_lettering import RedisDeadLettering
from apps.brokers.adapters.redis_streams.entries import (
    RedisEntry,
    entries_of,
    split_body,
)
from apps.brokers.adapters.redis_streams.settings import RedisSettings, key, text
from apps.brokers.adapters.redis_streams.wire import (
    BLOCK_SECONDS,
    Argument,
    RedisRejected,
    RedisWire,
)
from apps.brokers.ports import BATCH_BYTES, DeadLetter
from apps.core.errors import Unavailable

# Our group on a dead-letter queue, and its only consumer: the lane holds a lock.
OWN_GROUP = "poisonweb"
OWN_CONSUMER = "lane"

# How many entries of unknown size are asked for at once while a queue is large.
CAREFUL_STEP = 16
# A longer queue is taken for large: entries of several MB would not fit so often.
MEASURED_LENGTH = 10_000

_LOG = logging.getLogger(__name__)


class RedisDeadLetterReader:
    """Reads a dead-letter queue in a consumer group of our own.

    The cursor goes through what this group was handed before (after a restart), then
    on to new entries. It never goes back by itself: what was handed out and is left
    unacknowledged stays behind it and blocks nothing.
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
            page = [self._letter(entry) for entry in entries_of(reply)]
            if not page:
                break
            letters += page
            size += sum(letter.size for letter in page)
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
        return self._dead_lettering.move()

    def close(self) -> None:
        self._wire.close()

    def _batch(self, limit: int, wait: float) -> list[DeadLetter]:
        step, size, letters = self._step(limit), 0, list[DeadLetter]()
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

    def _fetch(self, count: int, wait: float) -> list[RedisEntry]:
        """Return the next entries; none at the end of what there is."""
        while self._cursor != self.NEW:
            handed_out = self._ask(count, 0)
            self._cursor = handed_out[-1].bookmark if handed_out else self.NEW
            entries = [entry for entry in handed_out if entry.fields]
            self._forget([entry for entry in handed_out if not entry.fields])
            if entries:
                return entries
        return self._ask(count, wait)

    def _ask(self, count: int, wait: float) -> list[RedisEntry]:
        block = int(min(wait, BLOCK_SECONDS) * 1000)
        command: list[Argument] = ["XREADGROUP", "GROUP", OWN_GROUP, OWN_CONSUMER]
        command += ["COUNT", count]
        # BLOCK 0 would wait for ever.
        command += ["BLOCK", block] if block > 0 else []
        command += ["STREAMS", self._queue, self._cursor]
        try:
            reply = self._wire.call(*command)
        except RedisRejected as error:
            # The first read of all, or the queue was deleted meanwhile; since Redis 7
            # UNBLOCKED tells that of a queue deleted while we waited.
            if error.code not in {"NOGROUP", "UNBLOCKED"}:
                raise
            self._make_group()
            reply = self._wire.call(*command)
        return entries_of(reply[0][1]) if reply else []

    def _forget(self, entries: Sequence[RedisEntry]) -> None:
        if entries:
            what = "%d dead letters of %s were removed by others before we read them"
            _LOG.warning(what, len(entries), text(self._queue))
            self.acknowledge([text(entry.bookmark) for entry in entries])

    def _letter(self, entry: RedisEntry) -> DeadLetter:
        body, headers = split_body(entry.fields, body_field=self._body_field)
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
        except RedisRejected as error:
            if error.code != "BUSYGROUP":
                raise
