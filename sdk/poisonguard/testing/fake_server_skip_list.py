"""The skip list with its revisions, and the events that its readers get."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

from poisonguard.contract import Invalid, parse_skip
from poisonguard.skipping.content_match_rules import parse_rule

Json = dict[str, Any]


class FakeEvent(NamedTuple):
    """A change of the list of a topic; a fence has no revision."""

    topic: str
    revision: int
    kind: str
    data: Json


class FakeSkipList:
    """The skips of all topics; `changed` is the double's."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.skips: dict[int, Json] = {}
        self.epoch = "e1"
        self.events: list[FakeEvent] = []
        self._oldest = 0  # of the revisions that a reader may still resume from
        self._revisions: Counter[str] = Counter()
        self._ids = count(1)
        self._ids_so_far: set[int] = set()

    def add(self, *, kind: str, value: object, **changes: Any) -> Json:
        skip = {
            "id": next(self._ids),
            "topic": "orders",
            "matcher": {"kind": kind, "value": value},
            "consumer_group": None,
            "handler_version": None,
            "expires_at": None,
            "reason": "it kills",
            "by": "user:anna",
            "at": "2026-11-20T12:00:00+00:00",
            "poison": None,
            **changes,
        }
        with self._changed:
            self.skips[skip["id"]] = skip
            self._ids_so_far.add(skip["id"])
            self.announce(skip["topic"], "skip", skip)
        return skip

    def add_requested(self, body: Json) -> Json:
        """Add the skip of a request to the fake list; raise Invalid if unusable."""
        skip = parse_skip({**body, "id": 0})
        if skip.kind == "rule":
            try:
                parse_rule(body["matcher"]["value"])
            except Invalid as why:
                pointer = f"/matcher/value{why.pointer}"
                raise Invalid(pointer, why.detail) from None
        if skip.expires_at is not None and skip.expires_at <= now():
            raise Invalid("/expires_at", "this time is past.")
        return self.add(**body["matcher"], **body)

    def remove(self, skip_id: int, *, because: str = "removed") -> Json:
        with self._changed:
            skip = self.skips.pop(skip_id)
            event = {"id": skip_id, "topic": skip["topic"], "because": because}
            self.announce(skip["topic"], "unskip", event)
        return skip

    def has_had(self, skip_id: int) -> bool:
        return skip_id in self._ids_so_far

    def announce(self, topic: str, kind: str, data: Json) -> None:
        """Give readers of the fake skip list an event of the next revision."""
        with self._changed:
            self._revisions[topic] += 1
            revision = self._revisions[topic]
            self.events.append(
                FakeEvent(topic, revision, kind, data | {"revision": revision})
            )
            self._changed.notify_all()

    def fence(self, *, client_name: str, sub_id: str, topic: str, epoch: int) -> None:
        """Send readers of the fake skip stream a fence: a position's holder changed."""
        event = {"client_name": client_name, "sub_id": sub_id, "epoch": epoch}
        with self._changed:
            self.events.append(FakeEvent(topic, 0, "fence", {**event, "topic": topic}))
            self._changed.notify_all()

    def new_epoch(self) -> None:
        """Give the fake skip list a new epoch, as after a restore: readers reset."""
        with self._changed:
            self.epoch = f"e{int(self.epoch[1:]) + 1}"
            self.events.clear()
            self._changed.notify_all()

    def forget_events(self) -> None:
        """Make every place of the fake skip stream so far too old to resume from."""
        with self._changed:
            self._oldest = max(self._revisions.values(), default=0) + 1
            for topic in self._revisions:
                self._revisions[topic] += 1
            self.events.clear()

    # What readers ask

    def heads(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: self._revisions[topic] for topic in topics}

    def resumes(self, after: str, topics: Sequence[str]) -> bool:
        """Tell if this test double still has all skip events behind this place."""
        epoch, _, numbers = after.rpartition(".")
        places = [int(number) for number in numbers.split(",")]
        heads = self.heads(topics).values()
        return (
            epoch == self.epoch
            and len(places) == len(topics)
            and all(
                self._oldest <= place <= head
                for place, head in zip(places, heads, strict=True)
            )
        )

    def snapshot(self, query: dict[str, str]) -> Json:
        topic, group = query["topic"], query.get("consumer_group")
        return {
            "epoch": self.epoch,
            "revision": self._revisions[topic],
            "skips": [
                skip
                for skip in self.skips.values()
                if skip["topic"] == topic
                and (group is None or skip["consumer_group"] in (None, group))
            ],
        }


def now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)
