"""A double of Poisonweb's protocol on loopback, with the faults of a real server.

It stores reports as the real one does (a report id, a reporter's sequence, a
confirmation count once), and records all requests. A test makes it stop and return,
freeze, answer an error, commit and lose its answer, cut its streams, change its epoch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import count
from typing import Any

from poisonguard.contract import (
    Invalid,
    parse_confirmation,
    parse_counter,
    parse_failure,
    parse_heartbeat,
    parse_skip,
)
from poisonguard.skipping.rules import parse_rule
from poisonguard.testing.positions import Position
from poisonguard.testing.web import Json, Problem, Web

KEY = "pw_of_a_fake_poisonweb"
SKIP_LASTS = timedelta(days=30)
StatusAndBody = tuple[HTTPStatus, Json]


@dataclass
class Fault:
    """What the next requests get instead of an answer."""

    status: int
    headers: dict[str, str]
    times: int
    path: str


class Double:
    """Poisonweb as a consumer sees it; `url` stays the same over stop and start."""

    def __init__(self) -> None:  # noqa: PLR0915 - all that a test may ask
        self.changed = threading.Condition(threading.RLock())
        self.requests: list[tuple[str, str, Json]] = []  # method, path with query, body
        self.headers: list[dict[str, str]] = []  # of each request
        self.failures: dict[str, Json] = {}  # by report id, as they came first
        self.confirmations: dict[str, Json] = {}  # by redrive
        self.counters: dict[tuple[str, int], Json] = {}  # by reporter and sequence
        self.guards: dict[str, Json] = {}  # by client name, the newest heartbeat
        self.applied: Counter[int] = Counter()  # by skip
        self.arrivals: Counter[str] = Counter()  # of each report id, however often
        self.rejects: Callable[[Json], str | None] = lambda _: None
        self.key = KEY
        self.forged: dict[str, Any] = {}  # a whole answer, by path
        self.rewords: Callable[[Json], Json] = dict  # each result of a POST
        self.ping: Callable[[str, dict[str, int]], str] = _ping
        self.skips: dict[int, Json] = {}
        self.positions: dict[tuple[str, str, str], Position] = {}
        self.epoch = "e1"
        self.has_lines = True  # as servers have from the release of this SDK on
        self.date_shift = 0.0
        self.date_of: Callable[[], str] | None = None  # in place of the time
        self.ping_every = 0.5
        self.oldest = 0  # of the revisions that a reader may still resume from
        self._revisions: Counter[str] = Counter()
        self._events: list[tuple[str, int, str, Json]] = []  # topic, revision, kind
        self._ids = count(1)
        self._skip_ids: set[int] = set()  # the skips that there ever were
        self._applied_reports: set[str] = set()
        self._faults: list[Fault] = []
        self._lose_answers = 0
        self._generation = 0  # a stream of an older one ends
        self._streaming = 0
        self._frozen = False
        self._port = 0
        self._poisons: dict[tuple[str, str, str], int] = {}
        self._reported: dict[str, int] = {}  # the poison of each report
        self._cleared: set[str] = set()  # reports that are suspected no more
        self._reports_by_poison: dict[
            int, Json
        ] = {}  # of each poison the report that made it
        self._redrives: set[str] = set()  # marks of what was requeued
        self._answered: dict[
            str, tuple[object, StatusAndBody]
        ] = {}  # by Idempotency-Key
        self._http: Web | None = None

    # Going away and coming back

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._http = Web(("127.0.0.1", self._port), self)
        self._port = self._http.server_address[1]
        threading.Thread(
            target=self._http.serve_forever, args=(0.01,), daemon=True
        ).start()

    def stop(self) -> None:
        """Stop like a killed process: no port listens, open connections break."""
        if self._http is not None:
            http, self._http = self._http, None
            http.shutdown()
            http.server_close()
            self.cut_streams()
            http.break_connections()

    def freeze(self) -> None:
        """Keep every connection and answer none, as a stopped process does."""
        with self.changed:
            self._frozen = True

    def thaw(self) -> None:
        with self.changed:
            self._frozen = False
            self.changed.notify_all()

    def cut_streams(self) -> None:
        with self.changed:
            self._generation += 1
            self.changed.notify_all()

    def answer(
        self,
        status: int,
        *,
        times: int = 10**9,
        path: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer the next requests whose path begins with `path` with this error."""
        with self.changed:
            self._faults.append(Fault(status, headers or {}, times, path))

    def recover(self) -> None:
        with self.changed:
            self._faults.clear()
            self._lose_answers = 0

    def lose_answers(self, times: int) -> None:
        """Do what the next POSTs ask for and break the connection before the answer."""
        with self.changed:
            self._lose_answers = times

    def new_epoch(self) -> None:
        """Become another store, as after a restored backup: readers are reset."""
        with self.changed:
            self.epoch = f"e{int(self.epoch[1:]) + 1}"
            self._events.clear()
            self.changed.notify_all()

    def forget_events(self) -> None:
        """Make every place so far too old to resume from."""
        with self.changed:
            self.oldest = max(self._revisions.values(), default=0) + 1
            for topic in self._revisions:
                self._revisions[topic] += 1
            self._events.clear()
        self.cut_streams()

    # What a test asks

    @property
    def streams(self) -> int:
        with self.changed:
            return self._streaming

    def until(self, true: Callable[[], object], *, timeout: float = 60) -> None:
        """Wait until a condition is true; fail after the time-out."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while not true():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise AssertionError("it did not come to be")
                self.changed.wait(min(remaining, 0.02))

    def totals(self) -> Counter[str]:
        """Add up the counters."""
        names = ("handled", "failed", "skipped", "retried")
        with self.changed:
            counters = list(self.counters.values())
        return Counter({name: sum(item[name] for item in counters) for name in names})

    # What people do on the other side

    def add_skip(self, *, kind: str, value: object, **changes: Any) -> Json:
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
        with self.changed:
            self.skips[skip["id"]] = skip
            self._skip_ids.add(skip["id"])
            self._tell(skip["topic"], "skip", skip)
        return skip

    def remove_skip(self, skip_id: int, *, because: str = "removed") -> Json:
        with self.changed:
            skip = self.skips.pop(skip_id)
            event = {"id": skip_id, "topic": skip["topic"], "because": because}
            self._tell(skip["topic"], "unskip", event)
        return skip

    def fence(self, *, client_name: str, sub_id: str, topic: str, epoch: int) -> None:
        event = {"client_name": client_name, "sub_id": sub_id, "epoch": epoch}
        with self.changed:
            self._events.append((topic, 0, "fence", {**event, "topic": topic}))
            self.changed.notify_all()

    def _tell(self, topic: str, kind: str, data: Json) -> None:
        self._revisions[topic] += 1
        revision = self._revisions[topic]
        self._events.append((topic, revision, kind, {**data, "revision": revision}))
        self.changed.notify_all()

    # The calls

    def call(
        self, method: str, path: str, query: list[tuple[str, str]], body: Json
    ) -> Json:
        calls: dict[tuple[str, str], Callable[[], Json]] = {
            ("POST", "/failures"): lambda: _each(self._fail, body["failures"]),
            ("POST", "/confirmations"): lambda: _each(
                self._confirm, body["confirmations"]
            ),
            ("POST", "/counters"): lambda: self._take_counters(body),
            ("POST", "/skips/applied"): lambda: _each(self._apply, body["applied"]),
            ("POST", "/skips"): lambda: self._add_asked(body),
            ("GET", "/skips"): lambda: self._snapshot(dict(query)),
            ("POST", "/positions/open"): lambda: self._open(body),
            ("POST", "/positions/settle"): lambda: _each(self._settle, body["updates"]),
        }
        head, _, last = path.rpartition("/")
        with self.changed:
            self.changed.notify_all()
            if (method, head) == ("DELETE", "/skips"):
                return self.remove_skip(int(last))
            if (method, head) == ("GET", "/poisons"):
                return self._detail(self._reports_by_poison[int(last)])
            return calls[method, path]()

    def once(
        self, key: str | None, request: object, act: Callable[[], StatusAndBody]
    ) -> tuple[HTTPStatus, Json, bool]:
        """Act, or return the earlier answer to this idempotency key."""
        with self.changed:
            if key is None:
                return (*act(), False)
            if key not in self._answered:
                self._answered[key] = request, act()
                return (*self._answered[key][1], False)
            before, answer = self._answered[key]
        if before != request:
            detail = "this Idempotency-Key belongs to another request"
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        return (*answer, True)

    def body(self, poison: str) -> bytes:
        with self.changed:
            return base64.b64decode(self._reports_by_poison[int(poison)]["body"])

    def mark(self) -> str:
        """Return a value for the header of a requeued message."""
        with self.changed:
            redrive = f"{uuid.uuid4()}.{uuid.uuid4().hex}"
            self._redrives.add(redrive)
            return redrive

    def trusts(self, redrive: str) -> bool:
        """Tell whether the mark was made here."""
        return redrive in self._redrives

    def shares(self, report: Json) -> bool:
        """Tell whether a report makes a skip."""
        return bool(report.get("replays")) and not report.get("suspected")

    def _detail(self, report: Json) -> Json:
        digest = hashlib.sha256(base64.b64decode(report["body"])).hexdigest()
        names = [name for name, _ in report["headers"]]
        return {**report, "digest": digest, "header_names": names}

    def _fail(self, item: Json) -> Json:
        if "body" not in item and "oversize_body" in item:
            return {"status": "rejected", "detail": "noted", "pointer": "/body"}
        parse_failure(item)
        detail = self.rejects(item)
        if detail is not None:
            return {"status": "rejected", "detail": detail}
        report_id = item["report_id"]
        self.arrivals[report_id] += 1
        first = self.failures.setdefault(report_id, item)
        is_cleared = first.get("suspected") and not item.get("suspected")
        if report_id in self._reported and (
            not is_cleared or report_id in self._cleared
        ):
            return {"status": "duplicate", "poison": self._reported[report_id]}
        if is_cleared:
            self._cleared.add(report_id)
        return self._capture(item)

    def _capture(self, item: Json) -> Json:
        message = (item["topic"], item["consumer_group"], item["bookmark"])
        is_new = message not in self._poisons
        poison = self._poisons.setdefault(message, len(self._poisons) + 1)
        self._reports_by_poison.setdefault(poison, item)
        self._reported[item["report_id"]] = poison
        if self.shares(item):
            self.add_skip(
                kind="bookmark",
                value=item["bookmark"],
                topic=item["topic"],
                consumer_group=item["consumer_group"],
                handler_version=item.get("handler_version"),
                expires_at=_moment(SKIP_LASTS),
                by="system:capture",
                poison=poison,
            )
        return {"status": "created" if is_new else "updated", "poison": poison}

    def _confirm(self, item: Json) -> Json:
        redrive = parse_confirmation(item).redrive
        if not self.trusts(redrive):
            raise Invalid("/redrive", "nothing was requeued under this mark.")
        self.confirmations[redrive] = item
        return {"status": "confirmed"}

    def _take_counters(self, body: Json) -> Json:
        guards = _each(self._set_guard, body.get("guards", []))
        return _each(self._count, body["counters"]) | {"guards": guards["results"]}

    def _set_guard(self, item: Json) -> Json:
        parse_heartbeat(item)
        before = self.guards.get(item["client_name"])
        if before is not None and item["at"] < before["at"]:
            return {"status": "duplicate"}
        self.guards[item["client_name"]] = item
        return {"status": "updated" if before else "created"}

    def _count(self, item: Json) -> Json:
        parse_counter(item)
        key = (item["reporter"], item["sequence"])
        is_duplicate = key in self.counters
        self.counters.setdefault(key, item)
        return {"status": "duplicate" if is_duplicate else "counted"}

    def _apply(self, item: Json) -> Json:
        if item["skip"] not in self._skip_ids:
            raise Invalid("/skip", "there is no such skip.")
        if item["report"] not in self._applied_reports:
            self._applied_reports.add(item["report"])
            self.applied[item["skip"]] += item["count"]
        return {"status": "ok"}

    def _add_asked(self, body: Json) -> Json:
        """Add a skip by hand, if it can be used."""
        skip = parse_skip({**body, "id": 0})
        if skip.kind == "rule":
            try:
                parse_rule(body["matcher"]["value"])
            except Invalid as why:
                pointer = f"/matcher/value{why.pointer}"
                raise Invalid(pointer, why.detail) from None
        if skip.expires_at is not None and skip.expires_at <= _now():
            raise Invalid("/expires_at", "this time is past.")
        return self.add_skip(**body["matcher"], **body)

    def _snapshot(self, query: dict[str, str]) -> Json:
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

    def _open(self, body: Json) -> Json:
        sub_id, topic = body.get("sub_id"), body.get("topic")
        if sub_id is not None and topic is not None:
            key = (body["client_name"], sub_id, topic)
            self.positions.setdefault(key, Position())
        opened = {
            key: position
            for key, position in self.positions.items()
            if key[0] == body["client_name"] and sub_id in (None, key[1])
        }
        epoch = 1 + max((p.epoch for p in opened.values()), default=0)
        rows: list[Json] = []
        for (client_name, sub, of), position in opened.items():
            position.epoch = epoch
            self.fence(client_name=client_name, sub_id=sub, topic=of, epoch=epoch)
            rows += [
                {"sub_id": sub, "topic": of, **position.mark(publisher)}
                for publisher in position.settled
            ]
        return {"epoch": epoch, "positions": rows}

    def _settle(self, update: Json) -> Json:
        key = (update["client_name"], update["sub_id"], update["topic"])
        position = self.positions.get(key)
        if position is None:
            raise Invalid("/topic", "this position is not open: open it first.")
        if position.epoch != update["epoch"]:
            return {"status": "fenced"}
        return position.settle(update)

    # Faults, asked for by each request

    def fault(self, path: str) -> Fault | None:
        with self.changed:
            while self._frozen:
                self.changed.wait(0.1)
            for fault in self._faults:
                if path.startswith(fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def loses_answer(self) -> bool:
        with self.changed:
            self._lose_answers -= 1
            return self._lose_answers >= 0

    # The stream

    def events(
        self, topics: list[str], group: str | None, after: str | None
    ) -> Generator[str, None, None]:
        """Yield the text of the stream, piece by piece, until it ends."""
        with self.changed:
            self._streaming += 1
            generation, epoch = self._generation, self.epoch
            at = {topic: self._revisions[topic] for topic in topics}
            event_count, reset = len(self._events), False
            if after:
                event_count, reset = 0, not self._resumes(after, topics)
                numbers = after.rpartition(".")[2].split(",")
                at = dict(zip(topics, map(int, numbers), strict=False))
        try:
            yield "retry: 1000\n\n"
            while not reset:
                with self.changed:
                    new_events, event_count = (
                        self._events[event_count:],
                        len(self._events),
                    )
                for event in new_events:
                    if group in (None, event[3].get("consumer_group") or group):
                        yield from _event_text(event, topics, at, epoch)
                yield self.ping(epoch, at)
                with self.changed:
                    if event_count == len(self._events):
                        self.changed.wait(self.ping_every)
                    while self._frozen:
                        self.changed.wait(0.1)
                    if generation != self._generation:
                        return
                    reset = epoch != self.epoch
            yield "event: reset\ndata: {}\n\n"
        finally:
            with self.changed:
                self._streaming -= 1

    def _resumes(self, after: str, topics: list[str]) -> bool:
        epoch, _, numbers = after.rpartition(".")
        places = [int(number) for number in numbers.split(",")]
        heads = [self._revisions[topic] for topic in topics]
        return (
            epoch == self.epoch
            and len(places) == len(topics)
            and all(
                self.oldest <= place <= head
                for place, head in zip(places, heads, strict=True)
            )
        )


def _each(call: Callable[[Json], Json], members: list[Json]) -> Json:
    return {"results": [_judged(call, member) for member in members]}


def _judged(call: Callable[[Json], Json], member: Json) -> Json:
    try:
        return call(member)
    except Invalid as why:
        return {"status": "rejected", "pointer": why.pointer, "detail": why.detail}


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


def _moment(ahead: timedelta) -> str:
    return (_now() + ahead).isoformat()


def _event_text(
    event: tuple[str, int, str, Json], topics: list[str], at: dict[str, int], epoch: str
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
