"""The check, and the consumer that it uses."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic

from poisonguard_conformance.raw_http_client import (
    EventStream,
    Json,
    MissingScope,
    ProtocolClient,
    Query,
    StreamEvent,
    Violated,
)

GROUP = "conformance"
EXCEPTION = {"type": "ConformanceCheck", "message": "on purpose", "traceback": ""}


@dataclass(kw_only=True)
class Consumer:
    """One consumer of one run, with names of its own, so that runs do not collide.

    `event_timeout` is how many seconds an event of the stream may take.
    """

    wire: ProtocolClient
    topic: str
    client_name: str
    event_timeout: float
    skips: list[int] = field(default_factory=list)
    irremovable: list[int] = field(default_factory=list)
    poisons: set[int] = field(default_factory=set)

    # Requests

    def failure(self, **changes: object) -> Json:
        """Build a conformance check's failure report, one member of POST /failures.

        `body` and header values are bytes.
        """
        body, headers = changes.pop("body", b"{}"), changes.pop("headers", ())
        now = moment()
        member = {
            "report_id": new_id(),
            "topic": self.topic,
            "consumer_group": GROUP,
            "client_name": self.client_name,
            "bookmark": f"conformance-{new_id()}",
            "body": in_base64(body),
            "headers": [[name, in_base64(value)] for name, value in _pairs(headers)],
            "cause": "fatal",
            "exception": EXCEPTION,
            "attempts": 1,
            "failures": 1,
            "crashes": 0,
            "first_failed_at": now,
            "failed_at": now,
        }
        return {**member, **changes}

    def skip(self, *, kind: str, value: object, **changes: object) -> Json:
        """Build the body of POST /skips in a conformance check; `add_skip` sends it."""
        matcher = {"kind": kind, "value": value}
        reason = "conformance: it is removed again"
        return {"topic": self.topic, "matcher": matcher, "reason": reason, **changes}

    # Calls

    def report(self, *members: object, **headers: str) -> list[Json]:
        """Post the played consumer's failure reports to the checked server.

        Return the server's results, and note their poisons.
        """
        answers = self.batch("/failures", "failures", *members, **headers)
        self.poisons.update(
            answer["poison"] for answer in answers if answer.get("poison")
        )
        return answers

    def batch(
        self, path: str, name: str, *members: object, **headers: str
    ) -> list[Json]:
        """Post members in one request to the checked server; return their results.

        Raise Violated without a result for each, MissingScope if the topic is refused.
        """
        answer = self.wire.post(path, {name: list(members)}, **headers).json_of_success
        results = answer.get("results") if isinstance(answer, Mapping) else None
        if not isinstance(results, list) or len(results) != len(members):
            result_count = results if results is None else len(results)
            raise Violated(f"{len(members)} members got {result_count} results")
        for result in results:
            if result.get("status") == "rejected" and result.get("pointer") == "/topic":
                raise MissingScope(f"{result.get('detail')} (see --topic-prefix)")
        return results

    def add_skip(self, *, kind: str, value: object, **changes: object) -> Json:
        """Add a skip to the checked server, and return it.

        It is removed when the check ends.
        """
        request = self.skip(kind=kind, value=value, **changes)
        skip: Json = self.wire.post("/skips", request).json_of_success
        self.skips.append(skip["id"])
        return skip

    def remove_skip(self, number: int) -> None:
        """Remove a skip from the checked server.

        Raise Violated if the server answers otherwise.
        """
        answer = self.wire.delete(f"/skips/{number}", {"reason": "conformance"})
        expect(
            "the number of the removed skip", answer.json_of_success.get("id"), number
        )
        self.skips.remove(number)

    def snapshot(self, **query: str) -> Json:
        """Get the checked server's skip list of the played consumer's topic."""
        parameters = {"topic": self.topic, **query}
        snapshot: Json = self.wire.get(
            "/skips", list(parameters.items())
        ).json_of_success
        return snapshot

    @contextmanager
    def stream(
        self, *topics: str, last_event_id: str = "", **query: str
    ) -> Iterator[EventStream]:
        """Open the checked server's skip stream for the block.

        It is of these topics, or else of the played consumer's topic.
        """
        parameters: Query = [
            *(("topic", topic) for topic in topics or (self.topic,)),
            *query.items(),
        ]
        with self.wire.stream(parameters, last_event_id=last_event_id) as stream:
            yield stream

    @contextmanager
    def following(self, *topics: str, **query: str) -> Iterator[EventStream]:
        """Open the checked server's skip stream at its head for the block.

        It sends all later changes. Raise Violated if it does not begin with a ping.
        """
        with self.stream(*topics, **query) as stream:
            if next(stream.until("ping", within=self.event_timeout), None) is None:
                raise Violated("no ping came at the start of a stream")
            yield stream

    def event(self, stream: EventStream, kind: str, number: int) -> StreamEvent:
        """Wait for an event of this skip on the checked server's stream; return it.

        Raise Violated at the time-out.
        """
        asked_at = monotonic()
        for event in stream.until(kind, within=self.event_timeout):
            if event.data.get("id") == number:
                return event
        waited = monotonic() - asked_at
        raise Violated(f"no {kind} of skip {number} came within {waited:.1f} s")

    def clean_up(self) -> None:
        """Remove the skips that a conformance check left on the checked server.

        Note which cannot be removed.
        """
        for number in list(self.skips):
            try:
                self.remove_skip(number)
            except (Violated, MissingScope):
                self.skips.remove(number)
                self.irremovable.append(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One statement of the protocol, and the function that checks it."""

    name: str
    says: str
    run: Callable[[Consumer], None]


def check(name: str, says: str) -> Callable[[Callable[[Consumer], None]], Check]:
    """Return a decorator that turns a function into a conformance check of a server.

    The function raises Violated or MissingScope.
    """
    return lambda run: Check(name=name, says=says, run=run)


def expect(what: str, actual: object, expected: object) -> None:
    """Raise Violated unless the checked server's value equals the expected one.

    The error names both values.
    """
    if actual != expected:
        raise Violated(f"{what}: {_shorten(actual)}, not {_shorten(expected)}")


def statuses(results: Sequence[Json]) -> list[object]:
    """Return the status, as `ok`, of each result in the checked server's answer."""
    return [result.get("status") for result in results]


def new_id() -> str:
    """Return a random UUID as text."""
    return str(uuid.uuid4())


def moment(*, seconds: float = 0) -> str:
    """Return a time on the wire for a conformance check: now, or some seconds later."""
    return (_now() + timedelta(seconds=seconds)).isoformat()


def minute() -> str:
    """Return the first moment of this minute on the wire, for a conformance check."""
    return _now().replace(second=0, microsecond=0).isoformat()


def in_base64(value: object) -> str:
    """Return a conformance check's bytes as base64 text; "" for any other value."""
    return base64.b64encode(value if isinstance(value, bytes) else b"").decode()


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _pairs(headers: object) -> Sequence[tuple[str, bytes]]:
    """Return a conformance check's headers if they are a sequence; otherwise none."""
    return headers if isinstance(headers, Sequence) else ()


def _shorten(value: object) -> str:
    """Return the repr of a checked server's value, cut to 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
