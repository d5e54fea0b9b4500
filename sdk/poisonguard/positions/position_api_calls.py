"""The two API calls that store positions: open and settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from poisonguard.errors import Away, Misconfigured
from poisonguard.positions.subscription_progress import (
    SEQ_LIMIT,
    Changes,
    Start,
    Subscription,
    Track,
)
from poisonguard.server.http_client import Client


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """The changes of one publisher of a subscription, in one request."""

    subscription: Subscription
    publisher: str
    changes: Changes


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionCalls:
    """The calls for the positions of one client name; both are idempotent.

    `bookmark` formats a place as the broker's own text, for people to read.
    """

    client: Client
    client_name: str
    bookmark: Callable[[str, int], str] | None

    def open(self, sub_id: str, topic: str | None, start: Start) -> Subscription:
        """Take over a subscription at the server; return the server's state of it.

        An unknown subscription without a topic is not opened by this.
        """
        question = {"client_name": self.client_name, "sub_id": sub_id}
        if topic is not None:
            question["topic"] = topic
        answer = self.client.post("/positions/open", question)
        with _away_if_unreadable():
            marks = [
                mark
                for mark in answer["positions"]
                if topic is None or mark["topic"] == topic
            ]
            tracks = {str(mark["publisher"]): _track(mark) for mark in marks}
            epoch = _number(answer["epoch"])
            topic = topic or _only_topic(sub_id, marks)
        return Subscription(
            sub_id=sub_id,
            topic=topic,
            start=start,
            epoch=None if topic is None else epoch,
            tracks=tracks,
        )

    def settle(self, updates: Sequence[Update]) -> list[Mapping[str, Any]]:
        """Send a consumer's position updates to the server in one request.

        Returns status and detail of each.
        """
        body = {"updates": [self._to_wire(update) for update in updates]}
        answer = self.client.post("/positions/settle", body)
        with _away_if_unreadable():
            results: list[Mapping[str, Any]] = [
                {**result, "status": result["status"]} for result in answer["results"]
            ]
        if len(results) != len(updates):
            raise Away(f"{len(updates)} updates got {len(results)} answers.")
        return results

    def _to_wire(self, update: Update) -> dict[str, object]:
        """Return a position update as JSON, one member of POST /positions/settle."""
        subscription, changes = update.subscription, update.changes
        members = {
            "client_name": self.client_name,
            "sub_id": subscription.sub_id,
            "topic": subscription.topic,
            "epoch": subscription.epoch,
            "publisher": update.publisher,
            "settled": changes.runs,
            "received": changes.received,
            "persisted": changes.persisted,
        }
        if self.bookmark is not None and changes.runs:
            members["bookmark"] = self.bookmark(update.publisher, changes.runs[-1][1])
        return {name: value for name, value in members.items() if value is not None}


def _only_topic(sub_id: str, marks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the one topic of position marks or None; raise Misconfigured for two."""
    topics = sorted({str(mark["topic"]) for mark in marks})
    if len(topics) > 1:
        raise Misconfigured(
            f"The sub id {sub_id} has positions in several topics, {', '.join(topics)}:"
            " say which one is read."
        )
    return next(iter(topics), None)


def _track(mark: Mapping[str, Any]) -> Track:
    """Build a publisher's track of settled messages from the server's mark."""
    processed, persisted = _number(mark["processed"]), mark["persisted"]
    settled = [(_number(first), _number(last)) for first, last in mark["settled"]]
    if processed >= 0:
        settled.append((0, processed))
    return Track.from_server(
        settled=settled, persisted=None if persisted is None else _number(persisted)
    )


def _number(value: object) -> int:
    """Return the number of a message; raise ValueError for anything else."""
    # A number beyond the limit would drop all messages as settled before.
    if type(value) is not int or not -1 <= value <= SEQ_LIMIT:
        raise ValueError(f"{value!r} is no number of a message")
    return value


@contextmanager
def _away_if_unreadable() -> Iterator[None]:
    """Raise Away if the block fails to read an answer of the server."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise Away("The answer about positions has another form than ours.") from reason
