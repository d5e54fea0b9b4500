"""Who reads the stream of skips: where each stands, and what lies ready for it.

What is new is encoded once for all readers that stand at the same place, and laid down
for each of them. A reader that does not keep up is told to begin anew: it never holds
more memory than it is allowed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rest_framework.utils.encoders import JSONEncoder

from apps.api.parameters.skips import Followed
from apps.api.shapes import skips as shapes
from apps.poison.skip_reading import ListedSkip
from apps.team.credentials import Credential

MOST_HELD = 1024 * 1024

BEGIN = b"retry: 1000\n\n"
RESET = b"event: reset\ndata: {}\n\n"


@dataclass(frozen=True, slots=True)
class Standing:
    """All that the events of a reader depend on: who stands alike hears the same."""

    topics: tuple[str, ...]
    consumer_group: str | None
    revisions: tuple[int, ...]

    def at(self, topic: str) -> int:
        return self.revisions[self.topics.index(topic)]

    def moved(self, topic: str, revision: int) -> Standing:
        place = self.topics.index(topic)
        before, after = self.revisions[:place], self.revisions[place + 1 :]
        return replace(self, revisions=(*before, revision, *after))

    def id(self, epoch: str) -> bytes:
        return f"id: {epoch}.{','.join(map(str, self.revisions))}\n".encode()


class Reader:
    """One open stream: where it stands, and what it has not taken yet."""

    def __init__(
        self, followed: Followed, credential: Credential, *, now: float
    ) -> None:
        self.followed = followed
        self.credential = credential
        self.standing = Standing(followed.topics, followed.consumer_group, ())
        self.opened_at = self.spoken_to_at = now
        self.ended = False
        self._chunks = [BEGIN]
        self._held = 0
        self._news = asyncio.Event()
        self._news.set()

    def put(self, chunk: bytes) -> None:
        """Lay something down to be sent; who has left too much lying begins anew."""
        if self._held > MOST_HELD:
            self.reset()
        elif not self.ended:
            self._chunks.append(chunk)
            self._held += len(chunk)
            self._news.set()

    def reset(self) -> None:
        """Tell it to take a new snapshot, and nothing else any more."""
        self._chunks, self._held = [RESET], 0
        self.end()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give what was laid down, as it comes, until the end."""
        while not self.ended or self._chunks:
            await self._news.wait()
            self._news.clear()
            chunks, self._chunks, self._held = self._chunks, [], 0
            if chunks:
                yield b"".join(chunks)


class Page:
    """Changes of one topic, up to a revision, as events for readers wherever they are.

    Each change is encoded once, and each list of events once for all who stand alike.
    """

    def __init__(
        self, epoch: str, topic: str, changes: Sequence[ListedSkip], *, to: int
    ) -> None:
        self._epoch = epoch
        self._topic = topic
        self._changes = [(change, _change(change)) for change in changes]
        self._to = to
        self._known: dict[Standing, tuple[bytes, Standing]] = {}

    def tell(self, reader: Reader, *, now: float) -> None:
        """Bring a reader to where this page ends."""
        before = reader.standing
        if before not in self._known:
            self._known[before] = self._events(before)
        events, reader.standing = self._known[before]
        if events:
            reader.put(events)
            reader.spoken_to_at = now

    def _events(self, standing: Standing) -> tuple[bytes, Standing]:
        events = bytearray()
        for change, event in self._changes:
            if change.revision > standing.at(self._topic):
                standing = standing.moved(self._topic, change.revision)
                if change.concerns(standing.consumer_group):
                    events += standing.id(self._epoch) + event
        last = max(self._to, standing.at(self._topic))
        return bytes(events), standing.moved(self._topic, last)


def _change(change: ListedSkip) -> bytes:
    if change.because:
        return encoded("unskip", shapes.unskip(change))
    suspect = encoded("suspect", shapes.suspect_at(change))
    if change.is_suspected:
        return suspect
    skip = encoded("skip", shapes.skip_at(change))
    # A consumer that has handled the message recognises it by these.
    is_known_by_more = change.message_id is not None or change.seq is not None
    return suspect + skip if is_known_by_more else skip


def ping(standing: Standing, epoch: str) -> bytes:
    return standing.id(epoch) + encoded("ping", {})


def encoded(kind: str, data: Mapping[str, object]) -> bytes:
    # In ASCII: a bookmark may hold what UTF-8 has no bytes for.
    text = json.dumps(data, cls=JSONEncoder, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()
