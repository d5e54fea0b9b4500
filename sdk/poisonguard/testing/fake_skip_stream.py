"""The stream of skips: the text that each reader gets, with pings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence

from poisonguard.testing.fake_server_faults import Faults
from poisonguard.testing.fake_server_skip_list import FakeEvent, FakeSkipList, Json


class FakeSkipStream:
    """The readers of the list; `ping` writes a ping, every `ping_every` seconds."""

    def __init__(
        self, skip_list: FakeSkipList, faults: Faults, changed: threading.Condition
    ) -> None:
        self._skip_list = skip_list
        self._faults = faults
        self._changed = changed
        self.ping: Callable[[str, dict[str, int]], str] = _ping
        self.ping_every = 0.5
        self._readers = 0
        self._generation = 0  # a stream of an older one ends

    @property
    def readers(self) -> int:
        with self._changed:
            return self._readers

    def forget_events(self) -> None:
        """Make all places of the fake skip stream too old to resume; cut streams."""
        self._skip_list.forget_events()
        self.cut()

    def cut(self) -> None:
        with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def events(
        self, topics: Sequence[str], group: str | None, after: str | None
    ) -> Generator[str, None, None]:
        """Yield the text of the fake skip stream, piece by piece, until it ends."""
        skip_list = self._skip_list
        with self._changed:
            self._readers += 1
            generation, epoch = self._generation, skip_list.epoch
            at, event_count, reset = self._begin(topics, after)
        try:
            yield "retry: 1000\n\n"
            while not reset:
                with self._changed:
                    new_events = skip_list.events[event_count:]
                    event_count = len(skip_list.events)
                for event in new_events:
                    if group in (None, event.data.get("consumer_group") or group):
                        yield from _event_text(event, topics, at, epoch)
                yield self.ping(epoch, at)
                with self._changed:
                    if event_count == len(skip_list.events):
                        self._changed.wait(self.ping_every)
                    self._faults.wait_until_thawed()
                    if generation != self._generation:
                        return
                    reset = epoch != skip_list.epoch
            yield "event: reset\ndata: {}\n\n"
        finally:
            with self._changed:
                self._readers -= 1

    def _begin(
        self, topics: Sequence[str], after: str | None
    ) -> tuple[dict[str, int], int, bool]:
        """Return where a reader of the fake skip stream begins, and if it must reset.

        That is its revision of each topic, and how many events it skips.
        """
        skip_list = self._skip_list
        if not after:
            return skip_list.heads(topics), len(skip_list.events), False
        numbers = map(int, after.rpartition(".")[2].split(","))
        at = dict(zip(topics, numbers, strict=False))
        return at, 0, not skip_list.resumes(after, topics)


def _event_text(
    event: FakeEvent, topics: Sequence[str], at: dict[str, int], epoch: str
) -> Iterator[str]:
    topic, revision, kind, data = event
    if topic not in topics or (revision and revision <= at[topic]):
        return
    if kind == "fence":
        yield f"event: fence\ndata: {json.dumps(data)}\n\n"
        return
    at[topic] = revision
    yield _event(kind, data, epoch, at)


def _ping(epoch: str, at: dict[str, int]) -> str:
    return _event("ping", {}, epoch, at)


def _event(kind: str, data: Json, epoch: str, at: dict[str, int]) -> str:
    place = f"{epoch}.{','.join(str(revision) for revision in at.values())}"
    return f"id: {place}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
