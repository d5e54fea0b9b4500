"""The stream of skips: one hub for each web process, however many read.

The hub asks Postgres what is new whenever it is told that something is (LISTEN), and
twice a second in any case.
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

from apps.api.parameters.skips import Followed
from apps.api.stream import access
from apps.api.stream.readers import Page, Reader, encoded, ping
from apps.core import clock, notices
from apps.core.sessions import open_async_session
from apps.poison import skip_reading
from apps.poison.skip_reading import Head, Told
from apps.team.credentials import Credential

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
AGAIN_SECONDS = 0.5
# Readers wait no longer for the first LISTEN: without it the lists are polled.
LISTEN_WITHIN = 2.0
PING_SECONDS = 15.0
# How often it is asked whether the keys and sessions of all readers may be used still.
CHECK_SECONDS = 1.0
# Then a key or a session has to be shown again.
LONGEST_SECONDS = 900.0
PAGE = 100
# Further behind, a snapshot is the shorter way.
MOST_BEHIND = 1_000

Session = psycopg.AsyncConnection[Any]


async def events(followed: Followed, credential: Credential) -> AsyncIterator[bytes]:
    """Give the events of these lists as they come, for the body of a response."""
    hub = Hub.of_this_loop()
    reader = hub.join(followed, credential)
    try:
        async for chunk in reader.chunks():
            yield chunk
    finally:
        hub.leave(reader)


class Hub:
    """All that read in one event loop, and the two sessions that feed them.

    `_present` are the readers that have been told all there is, up to `_told` of each
    topic; the others wait in `_new` to be brought there. `_read` counts who reads what.
    """

    _hubs: ClassVar[dict[asyncio.AbstractEventLoop, Hub]] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: set[Reader] = set()
        self._read: Counter[str] = Counter()
        self._present: set[Reader] = set()
        self._new: set[Reader] = set()
        self._epoch = ""
        self._told: dict[str, int] = {}
        self._pinged_at = self._checked_at = loop.time()
        self._wake = asyncio.Event()
        self._listens = asyncio.Event()
        self._task = loop.create_task(self._run())

    @classmethod
    def of_this_loop(cls) -> Hub:
        loop = asyncio.get_running_loop()
        if loop not in cls._hubs:
            cls._hubs[loop] = cls(loop)
            _end_when_told_to_stop()
        return cls._hubs[loop]

    @classmethod
    def end_all(cls) -> None:
        """End every stream; its reader goes on at another server."""
        for loop, hub in list(cls._hubs.items()):
            loop.call_soon_threadsafe(hub.end)

    def end(self) -> None:
        for reader in self._open:
            reader.end()

    def join(self, followed: Followed, credential: Credential) -> Reader:
        reader = Reader(followed, credential, now=self._loop.time())
        self._open.add(reader)
        self._read.update(followed.topics)
        self._new.add(reader)
        self._wake.set()
        return reader

    def leave(self, reader: Reader) -> None:
        """Forget a reader; with the last one the hub ends, and its sessions close."""
        reader.end()
        self._open.discard(reader)
        self._read.subtract(reader.followed.topics)
        self._present.discard(reader)
        self._new.discard(reader)
        if not self._open:
            self._withdraw()
            self._task.cancel()

    def _withdraw(self) -> None:
        if self._hubs.get(self._loop) is self:
            del self._hubs[self._loop]

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen())
                tasks.create_task(self._serve())
        finally:
            # Whatever ended this, nobody shall wait for it in vain.
            self._withdraw()
            for reader in self._open:
                reader.reset()

    async def _listen(self) -> None:
        """Wake up at every notice; while that fails, polling finds the same."""
        await self._on_and_on(
            "skips are polled for: notices cannot be heard", self._heed
        )

    async def _heed(self, well: Callable[[], None]) -> None:
        async with await open_async_session("listener") as session:
            await session.execute(f"LISTEN {notices.CHANNEL}")
            self._listens.set()
            well()
            self._wake.set()
            async for notice in session.notifies():
                self._hear(json.loads(notice.payload))

    def _hear(self, notice: Mapping[str, Any]) -> None:
        fence = notice.get(notices.FENCE)
        if fence is None:
            self._wake.set()
            return
        event = encoded("fence", fence)
        for reader in self._open:
            if fence["topic"] in reader.followed.topics:
                reader.put(event)

    async def _serve(self) -> None:
        # Whoever was told that it is at the present hears every fence from then on.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._listens.wait(), LISTEN_WITHIN)
        await self._on_and_on("the skip lists cannot be read", self._look_on)

    async def _look_on(self, well: Callable[[], None]) -> None:
        async with await open_async_session("skips") as session:
            await session.execute(skip_reading.FOUND_EPOCH)
            well()
            while True:
                await self._look(session)
                await self._until_woken()

    async def _until_woken(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)
        self._wake.clear()

    async def _look(self, session: Session) -> None:
        """Bring all to the present: those that were there before, then the new."""
        new = list(self._new)
        heads = await self._heads(session)
        for topic, head in heads.items():
            await self._tell(session, topic, head.revision)
        pages: dict[tuple[str, int], Page | None] = {}
        for reader in new:
            if not reader.ended:
                await self._bring(session, reader, heads, pages)
            self._new.discard(reader)
        self._ping()
        # Last: what has changed does not wait for it.
        await self._end_refused(session)

    async def _end_refused(self, session: Session) -> None:
        """End the streams whose key or session has ended since they were opened."""
        if self._loop.time() < self._checked_at + CHECK_SECONDS:
            return
        self._checked_at = self._loop.time()
        credentials = {reader.credential for reader in self._open}
        refused = credentials - await access.usable(
            session, credentials, now=clock.now()
        )
        for reader in self._open:
            if reader.credential in refused:
                reader.end()
        self._forget_ended()

    async def _heads(self, session: Session) -> dict[str, Head]:
        """Ask where the lists stand that anybody reads; forget those nobody does."""
        self._read = +self._read
        rows = await session.execute(skip_reading.HEADS, {"topics": sorted(self._read)})
        heads = {
            name: Head(epoch=epoch, revision=revision, floor=floor)
            for name, epoch, revision, floor in await rows.fetchall()
        }
        for topic, head in heads.items():
            if head.epoch != self._epoch or head.revision < self._told.get(topic, 0):
                self._begin_anew(head.epoch)
        self._told = {
            topic: self._told.get(topic, head.revision) for topic, head in heads.items()
        }
        return heads

    def _begin_anew(self, epoch: str) -> None:
        if self._present:
            log.warning("the store is another one than before: all readers begin anew")
        for reader in self._present:
            reader.reset()
        self._present.clear()
        self._told.clear()
        self._epoch = epoch

    async def _tell(self, session: Session, topic: str, head: int) -> None:
        """Tell the readers of a topic what changed since they were told."""
        while self._told[topic] < head:
            changes = await _changes(session, topic, self._told[topic], limit=PAGE)
            last = changes[-1].revision if changes else head
            to = last if len(changes) == PAGE else max(last, head)
            page = Page(self._epoch, topic, changes, to=to)
            for reader in self._present:
                if topic in reader.followed.topics:
                    page.tell(reader, now=self._loop.time())
            self._told[topic] = to
            self._forget_ended()

    async def _bring(
        self,
        session: Session,
        reader: Reader,
        heads: Mapping[str, Head],
        pages: dict[tuple[str, int], Page | None],
    ) -> None:
        if self._resumes(reader, heads):
            await self._admit(session, reader, pages)
        else:
            reader.reset()

    def _resumes(self, reader: Reader, heads: Mapping[str, Head]) -> bool:
        """Tell whether what came after a reader's last event is still known."""
        topics, after = reader.followed.topics, reader.followed.after
        if after is None:
            return True
        return (
            after.epoch == self._epoch
            and len(after.revisions) == len(topics)
            and all(
                heads[topic].floor <= revision <= self._told[topic]
                for topic, revision in zip(topics, after.revisions, strict=True)
            )
        )

    async def _admit(
        self,
        session: Session,
        reader: Reader,
        pages: dict[tuple[str, int], Page | None],
    ) -> None:
        """Bring a new reader from where it stands to the present."""
        topics, after = reader.followed.topics, reader.followed.after
        newest = tuple(self._told[topic] for topic in topics)
        revisions = newest if after is None else after.revisions
        reader.standing = replace(reader.standing, revisions=revisions)
        for place in zip(topics, revisions, strict=True):
            if place not in pages:
                pages[place] = await self._since(session, *place)
            page = pages[place]
            if page is None:
                reader.reset()
                return
            page.tell(reader, now=self._loop.time())
        reader.put(ping(reader.standing, self._epoch))
        if reader in self._open:
            self._present.add(reader)

    async def _since(self, session: Session, topic: str, revision: int) -> Page | None:
        """Give what came after a revision; None if it is too much."""
        newest, changes = self._told[topic], list[Told]()
        if revision < newest:
            changes = await _changes(session, topic, revision, limit=MOST_BEHIND + 1)
        if len(changes) > MOST_BEHIND:
            return None
        return Page(self._epoch, topic, changes, to=newest)

    def _ping(self) -> None:
        """Tell those who heard nothing for long that they are at the present still."""
        now = self._loop.time()
        # While thousands join, one look follows the other.
        if now < self._pinged_at + POLL_SECONDS:
            return
        self._pinged_at = now
        for reader in self._present:
            if now - reader.opened_at > LONGEST_SECONDS:
                reader.end()
            elif now - reader.spoken_to_at > PING_SECONDS:
                reader.put(ping(reader.standing, self._epoch))
                reader.spoken_to_at = now
        self._forget_ended()

    def _forget_ended(self) -> None:
        self._present = {reader for reader in self._present if not reader.ended}

    async def _on_and_on(
        self, trouble: str, work: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        """Begin the work again whenever Postgres is away; say so once each time."""
        is_well = True

        def well() -> None:
            nonlocal is_well
            if not is_well:
                log.info("no longer: %s", trouble)
            is_well = True

        while True:
            try:
                await work(well)
            except psycopg.Error as away:
                if is_well:
                    log.warning("%s: %s", trouble, away)
                is_well = False
            await asyncio.sleep(AGAIN_SECONDS)


def _end_when_told_to_stop() -> None:
    """Let the streams end when the server is to: it would wait for each of them."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if callable(before) and not isinstance(before, _Ending):
                signal.signal(number, _Ending(before))


@dataclass(frozen=True)
class _Ending:
    """What the server does at a signal, and the end of all streams."""

    before: Callable[[int, FrameType | None], object]

    def __call__(self, number: int, frame: FrameType | None) -> None:
        Hub.end_all()
        self.before(number, frame)


async def _changes(
    session: Session, topic: str, after: int, *, limit: int
) -> list[Told]:
    values = {"topic": topic, "after": after, "limit": limit}
    rows = await session.execute(skip_reading.CHANGES, values)
    return [Told(*row) for row in await rows.fetchall()]
