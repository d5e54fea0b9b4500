"""The stream of skips: one hub for each event loop serves all of its readers.

The hub polls Postgres for changes at every notice (LISTEN), and twice a second in any
case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, ClassVar

import psycopg

from apps.api.skip_stream import credential_recheck
from apps.api.skip_stream.stream_params import StreamParams
from apps.api.skip_stream.stream_reader_queues import (
    ChangeBatch,
    StreamReader,
    encode_event,
    ping,
)
from apps.core import clock, notify_channel
from apps.core.postgres_connections import notices, open_async_session
from apps.poison import skip_list_for_consumers
from apps.poison.skip_list_for_consumers import ListedSkip, SkipListHead
from apps.team.open_stream_credentials import Credential

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
RETRY_SECONDS = 0.5
# Readers wait no longer for the first LISTEN: without it the lists are polled.
LISTEN_WITHIN = 2.0
PING_SECONDS = 15.0
# The interval of checking that the keys and sessions of all readers are still valid.
CHECK_SECONDS = 1.0
# The longest life of a stream; then the reader has to authenticate again.
LONGEST_SECONDS = 900.0
PAGE = 100
# A reader further behind gets a reset: a snapshot is cheaper than the changes.
MOST_BEHIND = 1_000

Session = psycopg.AsyncConnection[Any]


async def events(params: StreamParams, credential: Credential) -> AsyncIterator[bytes]:
    """Yield the changes of these skip lists as they come, for a response's body."""
    hub = Hub.of_this_loop()
    reader = hub.join(params, credential)
    try:
        async for chunk in reader.chunks():
            yield chunk
    finally:
        hub.leave(reader)


class Hub:
    """The readers of one event loop, and the two database sessions that feed them.

    The readers in `_current` have all changes up to the revision in `_revisions` of
    each topic; those in `_joining` wait to be brought up to it. `_reader_counts` counts
    the readers of each topic.
    """

    _hubs: ClassVar[dict[asyncio.AbstractEventLoop, Hub]] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: set[StreamReader] = set()
        self._reader_counts: Counter[str] = Counter()
        self._current: set[StreamReader] = set()
        self._joining: set[StreamReader] = set()
        self._epoch = ""
        self._revisions: dict[str, int] = {}
        self._pinged_at = self._checked_at = loop.time()
        self._wake = asyncio.Event()
        self._listens = asyncio.Event()
        self._task = loop.create_task(self._run())

    @classmethod
    def of_this_loop(cls) -> Hub:
        """Return this event loop's hub of skip streams; the first reader makes it."""
        loop = asyncio.get_running_loop()
        if loop not in cls._hubs:
            cls._hubs[loop] = cls(loop)
            _end_streams_on_signals()
        return cls._hubs[loop]

    @classmethod
    def end_all(cls) -> None:
        """End every skip stream; its reader reconnects to another server."""
        for loop, hub in list(cls._hubs.items()):
            loop.call_soon_threadsafe(hub.end)

    def end(self) -> None:
        """End the skip streams of all readers."""
        for reader in self._open:
            reader.end()

    def join(self, params: StreamParams, credential: Credential) -> StreamReader:
        """Add a reader of skip streams; the next poll sends what it lacks."""
        reader = StreamReader(params, credential, now=self._loop.time())
        self._open.add(reader)
        self._reader_counts.update(params.topics)
        self._joining.add(reader)
        self._wake.set()
        return reader

    def leave(self, reader: StreamReader) -> None:
        """Remove a stream's reader; the last one ends the hub and its sessions."""
        reader.end()
        self._open.discard(reader)
        self._reader_counts.subtract(reader.params.topics)
        self._current.discard(reader)
        self._joining.discard(reader)
        if not self._open:
            self._forget_hub()
            self._task.cancel()

    def _forget_hub(self) -> None:
        """Forget this hub of skip streams: the loop's next reader starts another."""
        if self._hubs.get(self._loop) is self:
            del self._hubs[self._loop]

    async def _run(self) -> None:
        """Run a hub of skip streams until cancelled; then reset all their readers."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._wake_at_notices())
                tasks.create_task(self._serve())
        finally:
            # However the tasks ended, no reader may wait for events of this hub.
            self._forget_hub()
            for reader in self._open:
                reader.reset()

    async def _wake_at_notices(self) -> None:
        """Wake the poll of skip lists at every notice of Postgres.

        While notices cannot be heard, regular polls find the changes.
        """
        await self._retry_forever(
            "skips are polled for: notices cannot be heard", self._receive_notices
        )

    async def _receive_notices(self, connected: Callable[[], None]) -> None:
        """Handle Postgres' notices of skips and fences on a session that listens."""
        async with await open_async_session("listener") as session:
            await session.execute(f"LISTEN {notify_channel.CHANNEL}")
            self._listens.set()
            connected()
            self._wake.set()
            async for notice in notices(session):
                self._handle_notice(json.loads(notice.payload))

    def _handle_notice(self, notice: Mapping[str, Any]) -> None:
        """Send a position's fence to its topic's readers at once.

        At any other notice, wake the poll of the skip lists.
        """
        fence = notice.get(notify_channel.FENCE)
        if fence is None:
            self._wake.set()
            return
        event = encode_event("fence", fence)
        for reader in self._open:
            if fence["topic"] in reader.params.topics:
                reader.put(event)

    async def _serve(self) -> None:
        """Send changes of skips as long as the hub runs, once notices arrive."""
        # A reader that got its first ping receives every fence from then on.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_WITHIN):
                await self._listens.wait()
        await self._retry_forever("the skip lists cannot be read", self._poll_lists)

    async def _poll_lists(self, connected: Callable[[], None]) -> None:
        """Poll the skip lists for the hub at each wake, and every half second."""
        async with await open_async_session("skips") as session:
            await session.execute(skip_list_for_consumers.INSERT_EPOCH)
            connected()
            while True:
                await self._poll(session)
                await self._wait_for_wake()

    async def _wait_for_wake(self) -> None:
        """Wait for a notice of skips, at most until the hub's next poll is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        self._wake.clear()

    async def _poll(self, session: Session) -> None:
        """Send all changes of skips, to current readers first, then to joining ones."""
        joining = list(self._joining)
        heads = await self._heads(session)
        for topic, head in heads.items():
            await self._send_changes(session, topic, head.revision)
        batches: dict[tuple[str, int], ChangeBatch | None] = {}
        for reader in joining:
            if not reader.is_ended:
                await self._catch_up(session, reader, heads, batches)
            self._joining.discard(reader)
        self._ping()
        # Last, so that changes do not wait for this check.
        await self._end_refused(session)

    async def _end_refused(self, session: Session) -> None:
        """End the streams whose key or session is no longer valid."""
        if self._loop.time() < self._checked_at + CHECK_SECONDS:
            return
        self._checked_at = self._loop.time()
        credentials = {reader.credential for reader in self._open}
        refused = credentials - await credential_recheck.usable(
            session, credentials, now=clock.now()
        )
        for reader in self._open:
            if reader.credential in refused:
                reader.end()
        self._forget_ended()

    async def _heads(self, session: Session) -> dict[str, SkipListHead]:
        """Read the heads of all skip lists with readers; forget the other lists."""
        self._reader_counts = +self._reader_counts
        rows = await session.execute(
            skip_list_for_consumers.HEADS, {"topics": sorted(self._reader_counts)}
        )
        heads = {
            name: SkipListHead(epoch=epoch, revision=revision, floor=floor)
            for name, epoch, revision, floor in await rows.fetchall()
        }
        for topic, head in heads.items():
            if head.epoch != self._epoch or head.revision < self._revisions.get(
                topic, 0
            ):
                self._reset_all(head.epoch)
        self._revisions = {
            topic: self._revisions.get(topic, head.revision)
            for topic, head in heads.items()
        }
        return heads

    def _reset_all(self, epoch: str) -> None:
        """Reset the hub's readers of skip streams: another store took over."""
        if self._current:
            log.warning("the store is another one than before: all readers are reset")
        for reader in self._current:
            reader.reset()
        self._current.clear()
        self._revisions.clear()
        self._epoch = epoch

    async def _send_changes(self, session: Session, topic: str, head: int) -> None:
        """Send a topic's skip changes up to its head to its current readers."""
        while self._revisions[topic] < head:
            changes = await _changes(session, topic, self._revisions[topic], limit=PAGE)
            last = changes[-1].revision if changes else head
            to = last if len(changes) == PAGE else max(last, head)
            batch = ChangeBatch(self._epoch, topic, changes, to=to)
            for reader in self._current:
                if topic in reader.params.topics:
                    batch.send_to(reader, now=self._loop.time())
            self._revisions[topic] = to
            self._forget_ended()

    async def _catch_up(
        self,
        session: Session,
        reader: StreamReader,
        heads: Mapping[str, SkipListHead],
        batches: dict[tuple[str, int], ChangeBatch | None],
    ) -> None:
        """Admit a reader of a skip stream if it can resume, otherwise reset it."""
        if self._can_resume(reader, heads):
            await self._admit(session, reader, batches)
        else:
            reader.reset()

    def _can_resume(
        self, reader: StreamReader, heads: Mapping[str, SkipListHead]
    ) -> bool:
        """Tell whether the skip changes after a reader's last event are stored."""
        topics, after = reader.params.topics, reader.params.after
        if after is None:
            return True
        return (
            after.epoch == self._epoch
            and len(after.revisions) == len(topics)
            and all(
                heads[topic].floor <= revision <= self._revisions[topic]
                for topic, revision in zip(topics, after.revisions, strict=True)
            )
        )

    async def _admit(
        self,
        session: Session,
        reader: StreamReader,
        batches: dict[tuple[str, int], ChangeBatch | None],
    ) -> None:
        """Send a joining reader the skip changes it lacks; make it a current one."""
        topics, after = reader.params.topics, reader.params.after
        newest = tuple(self._revisions[topic] for topic in topics)
        revisions = newest if after is None else after.revisions
        reader.state = replace(reader.state, revisions=revisions)
        for start in zip(topics, revisions, strict=True):
            if start not in batches:
                batches[start] = await self._changes_since(session, *start)
            batch = batches[start]
            if batch is None:
                reader.reset()
                return
            batch.send_to(reader, now=self._loop.time())
        reader.put(ping(reader.state, self._epoch))
        if reader in self._open:
            self._current.add(reader)

    async def _changes_since(
        self, session: Session, topic: str, revision: int
    ) -> ChangeBatch | None:
        """Return a list's skip changes after a revision; None if they are too many."""
        newest, changes = self._revisions[topic], list[ListedSkip]()
        if revision < newest:
            changes = await _changes(session, topic, revision, limit=MOST_BEHIND + 1)
        if len(changes) > MOST_BEHIND:
            return None
        return ChangeBatch(self._epoch, topic, changes, to=newest)

    def _ping(self) -> None:
        """Ping the readers that got no event for a while; end the oldest streams."""
        now = self._loop.time()
        # While thousands of readers join, polls follow each other without a pause.
        if now < self._pinged_at + POLL_SECONDS:
            return
        self._pinged_at = now
        for reader in self._current:
            if now - reader.opened_at > LONGEST_SECONDS:
                reader.end()
            elif now - reader.last_event_at > PING_SECONDS:
                reader.put(ping(reader.state, self._epoch))
                reader.last_event_at = now
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop the readers whose streams have ended."""
        self._current = {reader for reader in self._current if not reader.is_ended}

    async def _retry_forever(
        self, trouble: str, work: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        """Restart the hub's work whenever Postgres is away; log each outage once."""
        is_connected = True

        def connected() -> None:
            nonlocal is_connected
            if not is_connected:
                log.info("no longer: %s", trouble)
            is_connected = True

        while True:
            try:
                await work(connected)
            except psycopg.Error as error:
                if is_connected:
                    log.warning("%s: %s", trouble, error)
                is_connected = False
            await asyncio.sleep(RETRY_SECONDS)


def _end_streams_on_signals() -> None:
    """End all skip streams when the server stops: it would wait for them."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(number)
            if callable(previous) and not isinstance(previous, _EndStreams):
                signal.signal(number, _EndStreams(previous))


@dataclass(frozen=True)
class _EndStreams:
    """Signal handler that ends all streams, then calls the previous handler."""

    previous: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        Hub.end_all()
        self.previous(number, frame)


async def _changes(
    session: Session, topic: str, after: int, *, limit: int
) -> list[ListedSkip]:
    """Read the changes of a skip list after a revision."""
    values = {"topic": topic, "after": after, "limit": limit}
    rows = await session.execute(skip_list_for_consumers.CHANGES, values)
    return [ListedSkip(*row) for row in await rows.fetchall()]
