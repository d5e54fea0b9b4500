"""The readers of the stream of skips: the state of each, and its queue of events.

Changes are encoded once for all readers in the same state, and queued for each of them.
A slow reader whose queue exceeds its limit gets a reset instead, which frees the queue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rest_framework.utils.encoders import JSONEncoder

from apps.api.response_dicts import message_skips as shapes
from apps.api.skip_stream.stream_params import StreamParams
from apps.poison.skip_list_for_consumers import ListedSkip
from apps.team.open_stream_credentials import Credential

MOST_QUEUED_BYTES = 1024 * 1024

BEGIN = b"retry: 1000\n\n"
RESET = b"event: reset\ndata: {}\n\n"


@dataclass(frozen=True, slots=True)
class ReaderState:
    """All that the events of a reader depend on: equal states get equal events."""

    topics: tuple[str, ...]
    consumer_group: str | None
    revisions: tuple[int, ...]

    def at(self, topic: str) -> int:
        """Return the skip list's revision of a topic up to which events were sent."""
        return self.revisions[self.topics.index(topic)]

    def advanced(self, topic: str, revision: int) -> ReaderState:
        """Return the reader's state with a later revision of a topic."""
        index = self.topics.index(topic)
        before, after = self.revisions[:index], self.revisions[index + 1 :]
        return replace(self, revisions=(*before, revision, *after))

    def event_id(self, epoch: str) -> bytes:
        """Encode the id of the hub's event in this state: a reader resumes from it."""
        return f"id: {epoch}.{','.join(map(str, self.revisions))}\n".encode()


class StreamReader:
    """One open stream: its state, and the events that it has not read yet."""

    def __init__(
        self, params: StreamParams, credential: Credential, *, now: float
    ) -> None:
        self.params = params
        self.credential = credential
        self.state = ReaderState(params.topics, params.consumer_group, ())
        self.opened_at = self.last_event_at = now
        self.is_ended = False
        self._chunks = [BEGIN]
        self._queued_bytes = 0
        self._ready = asyncio.Event()
        self._ready.set()

    def put(self, chunk: bytes) -> None:
        """Queue a stream's event; reset the reader if its queue is over the limit."""
        if self._queued_bytes > MOST_QUEUED_BYTES:
            self.reset()
        elif not self.is_ended:
            self._chunks.append(chunk)
            self._queued_bytes += len(chunk)
            self._ready.set()

    def reset(self) -> None:
        """Drop the reader's queue, tell it to start over, and end the stream."""
        self._chunks, self._queued_bytes = [RESET], 0
        self.end()

    def end(self) -> None:
        """End the reader's stream after its queued events."""
        self.is_ended = True
        self._ready.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the reader's queued events, as they come, until the end."""
        while not self.is_ended or self._chunks:
            await self._ready.wait()
            self._ready.clear()
            chunks, self._chunks, self._queued_bytes = self._chunks, [], 0
            if chunks:
                yield b"".join(chunks)


class ChangeBatch:
    """Changes of one topic, up to a revision, as events for readers in any state.

    Each change is encoded once, and each list of events once for all equal states.
    """

    def __init__(
        self, epoch: str, topic: str, changes: Sequence[ListedSkip], *, to: int
    ) -> None:
        self._epoch = epoch
        self._topic = topic
        self._changes = [(change, _encoded_change(change)) for change in changes]
        self._to = to
        self._cache: dict[ReaderState, tuple[bytes, ReaderState]] = {}

    def send_to(self, reader: StreamReader, *, now: float) -> None:
        """Queue the skip changes that a stream reader lacks; advance its revision."""
        before = reader.state
        if before not in self._cache:
            self._cache[before] = self._events(before)
        events, reader.state = self._cache[before]
        if events:
            reader.put(events)
            reader.last_event_at = now

    def _events(self, state: ReaderState) -> tuple[bytes, ReaderState]:
        """Encode skip changes for readers of this state; return the new state, too."""
        events = bytearray()
        for change, event in self._changes:
            if change.revision > state.at(self._topic):
                state = state.advanced(self._topic, change.revision)
                if change.concerns(state.consumer_group):
                    events += state.event_id(self._epoch) + event
        last = max(self._to, state.at(self._topic))
        return bytes(events), state.advanced(self._topic, last)


def _encoded_change(change: ListedSkip) -> bytes:
    """Encode a skip's change as the event that it has now."""
    if change.because:
        return encode_event("unskip", shapes.unskip(change))
    suspect = encode_event("suspect", shapes.suspect_event(change))
    if change.is_suspected:
        return suspect
    skip = encode_event("skip", shapes.skip_event(change))
    # A consumer that has handled the message recognises it by these, too.
    has_identifiers = change.message_id is not None or change.seq is not None
    return suspect + skip if has_identifiers else skip


def ping(state: ReaderState, epoch: str) -> bytes:
    """Encode a ping of the skip stream, with the id to resume from."""
    return state.event_id(epoch) + encode_event("ping", {})


def encode_event(kind: str, data: Mapping[str, object]) -> bytes:
    """Encode an event of the skip stream: its kind, and JSON."""
    # In ASCII: a bookmark may hold surrogates, which UTF-8 cannot encode.
    text = json.dumps(data, cls=JSONEncoder, separators=(",", ":"))
    return f"event: {kind}\ndata: {text}\n\n".encode()
