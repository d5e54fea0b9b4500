"""A double of Poisonweb's protocol on loopback, with the faults of a real server.

It keeps what it was told the way the real one does (a report id, a reporter's sequence,
a confirmation count once) and what came besides. A test makes it go away and come back,
freeze, answer an error, commit and lose its answer, cut its streams, change its epoch.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from poisonguard import skip_lines

KEY = "pw_test_key"
Json = dict[str, Any]


@dataclass
class Fault:
    """What the next requests get instead of an answer."""

    status: int
    headers: dict[str, str]
    times: int
    path: str


@dataclass
class Position:
    epoch: int = 0
    settled: dict[str, list[list[int]]] = field(default_factory=dict)
    persisted: dict[str, int] = field(default_factory=dict)


class Server:
    """Poisonweb as a consumer sees it; `url` stays the same over stop and start."""

    def __init__(self) -> None:  # noqa: PLR0915 - all that a test may ask
        self.changed = threading.Condition(threading.RLock())
        self.requests: list[tuple[str, str, Json]] = []  # method, path with query, body
        self.headers: list[dict[str, str]] = []  # of each request
        self.failures: dict[str, Json] = {}  # by report id, as they came first
        self.confirmations: dict[str, Json] = {}  # by redrive
        self.counters: dict[tuple[str, int], Json] = {}  # by reporter and sequence
        self.guards: dict[str, Json] = {}  # by client name, the newest word
        self.applied: Counter[int] = Counter()  # by skip
        self.arrivals: Counter[str] = Counter()  # of each report id, however often
        self.rejects: Callable[[Json], str | None] = lambda _: None
        self.key = KEY
        self.forged: dict[str, Any] = {}  # a whole answer, by path
        self.rewords: Callable[[Json], Json] = dict  # each result of a POST
        self.ping: Callable[[str, dict[str, int]], str] = _ping
        self.replays = False  # a failure makes a skip
        self.has_lines = True  # as servers have from the release of this SDK on
        self.skips: dict[int, Json] = {}
        self.positions: dict[tuple[str, str, str], Position] = {}
        self.epoch = "e1"
        self.date_shift = 0.0
        self.date_of: Callable[[], str] | None = None  # in place of the time
        self.ping_every = 0.5
        self.oldest = 0  # of the revisions that a reader may still resume from
        self._revisions: Counter[str] = Counter()
        self._events: list[tuple[str, int, str, Json]] = []  # topic, revision, kind
        self._ids = count(1)
        self._applied_reports: set[str] = set()
        self._faults: list[Fault] = []
        self._lose_answers = 0
        self._generation = 0  # a stream of an older one ends
        self._streaming = 0
        self._frozen = False
        self._port = 0
        self._http: _Http | None = None
        self.start()

    # Going away and coming back

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._http = _Http(("127.0.0.1", self._port), _Handler, self)
        self._port = self._http.server_address[1]
        threading.Thread(
            target=self._http.serve_forever, args=(0.01,), daemon=True
        ).start()

    def stop(self) -> None:
        """Go away as a killed process does: nobody listens, open connections break."""
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
        """Answer the next requests whose path begins so with an error."""
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
        """Let every place so far be too old to resume from."""
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
        """Wait until something came to be; fail where it does not."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while not true():
                left = deadline - time.monotonic()
                assert left > 0, "it did not come to be"
                self.changed.wait(min(left, 0.02))

    def totals(self) -> Counter[str]:
        """Add up the counters."""
        names = ("handled", "failed", "skipped", "retried")
        with self.changed:
            kept = list(self.counters.values())
        return Counter({name: sum(item[name] for item in kept) for name in names})

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
            self._tell(skip["topic"], "skip", skip)
        return skip

    def remove_skip(self, skip_id: int, *, because: str = "removed") -> Json:
        with self.changed:
            skip = self.skips.pop(skip_id)
            told = {"id": skip_id, "topic": skip["topic"], "because": because}
            self._tell(skip["topic"], "unskip", told)
        return skip

    def fence(self, *, client_name: str, sub_id: str, topic: str, epoch: int) -> None:
        told = {"client_name": client_name, "sub_id": sub_id, "epoch": epoch}
        with self.changed:
            self._events.append((topic, 0, "fence", {**told, "topic": topic}))
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
            ("POST", "/skips"): lambda: self.add_skip(**body["matcher"], **body),
            ("GET", "/skips"): lambda: self._snapshot(dict(query)),
            ("POST", "/positions/open"): lambda: self._open(body),
            ("POST", "/positions/settle"): lambda: _each(self._settle, body["updates"]),
        }
        head, _, last = path.rpartition("/")
        with self.changed:
            self.changed.notify_all()
            if (method, head) == ("DELETE", "/skips"):
                return self.remove_skip(int(last))
            return calls[method, path]()

    def _fail(self, item: Json) -> Json:
        detail = self.rejects(item)
        if "body" not in item:
            return {"status": "rejected", "detail": "noted", "pointer": "/body"}
        if detail is not None:
            return {"status": "rejected", "detail": detail}
        report_id = item["report_id"]
        self.arrivals[report_id] += 1
        known = report_id in self.failures
        self.failures.setdefault(report_id, item)
        poison = 1 + list(self.failures).index(report_id)
        if self.replays and not known and not item.get("suspected"):
            self.add_skip(
                kind="bookmark",
                value=item["bookmark"],
                topic=item["topic"],
                consumer_group=item["consumer_group"],
                handler_version=item.get("handler_version"),
                by="system:capture",
                poison=poison,
            )
        return {"status": "duplicate" if known else "created", "poison": poison}

    def _confirm(self, item: Json) -> Json:
        self.confirmations[item["redrive"]] = item
        return {"status": "confirmed"}

    def _take_counters(self, body: Json) -> Json:
        words = body.get("guards", [])
        self.guards |= {word["client_name"]: word for word in words}
        return _each(self._count, body["counters"]) | {
            "guards": [{"status": "updated"} for _ in words]
        }

    def _count(self, item: Json) -> Json:
        key = (item["reporter"], item["sequence"])
        known = key in self.counters
        self.counters.setdefault(key, item)
        return {"status": "duplicate" if known else "counted"}

    def _apply(self, item: Json) -> Json:
        if item["report"] not in self._applied_reports:
            self._applied_reports.add(item["report"])
            self.applied[item["skip"]] += item["count"]
        return {"status": "ok"}

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
            rows += [_marks(position, p, sub, of) for p in position.settled]
        return {"epoch": epoch, "positions": rows}

    def _settle(self, update: Json) -> Json:
        key = (update["client_name"], update["sub_id"], update["topic"])
        position = self.positions.get(key)
        if position is None or position.epoch != update["epoch"]:
            return {"status": "fenced"}
        publisher = update["publisher"]
        kept = position.settled.get(publisher, [])
        position.settled[publisher] = merged([*kept, *update["settled"]])
        if update.get("persisted") is not None:
            position.persisted[publisher] = max(
                position.persisted.get(publisher, 0), update["persisted"]
            )
        return {"status": "ok"}

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
        """Give the text of the stream, piece by piece, until it ends."""
        with self.changed:
            self._streaming += 1
            generation, epoch = self._generation, self.epoch
            at = {topic: self._revisions[topic] for topic in topics}
            seen, reset = len(self._events), False
            if after:
                seen, reset = 0, not self._resumes(after, topics)
                numbers = after.rpartition(".")[2].split(",")
                at = dict(zip(topics, map(int, numbers), strict=False))
        try:
            yield "retry: 1000\n\n"
            while not reset:
                with self.changed:
                    fresh, seen = self._events[seen:], len(self._events)
                for event in fresh:
                    if group in (None, event[3].get("consumer_group") or group):
                        yield from _told(event, topics, at, epoch)
                yield self.ping(epoch, at)
                with self.changed:
                    if seen == len(self._events):
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
    return {"results": [call(member) for member in members]}


def lines_of(answer: Json) -> Iterator[bytes]:
    """Write a snapshot as the server of today does."""
    return skip_lines.lines(
        epoch=answer["epoch"],
        revision=answer["revision"],
        skips=(_row(each, skip_lines.COLUMNS) for each in answer["skips"]),
        suspects=(
            _row(each, skip_lines.SUSPECT_COLUMNS)
            for each in answer.get("suspects", [])
        ),
    )


def _row(skip: Json, names: tuple[str, ...]) -> list[Any]:
    times = {name: _microseconds(skip.get(name)) for name in ("expires_at", "at")}
    flat = {**skip, **skip["matcher"], **times}
    return [flat.get(name) for name in names]


def _microseconds(text: str | None) -> int | None:
    if text is None:
        return None
    return skip_lines.microseconds(datetime.fromisoformat(text))


def merged(ranges: list[list[int]]) -> list[list[int]]:
    """Join inclusive ranges that overlap or touch."""
    joined: list[list[int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return joined


def _marks(position: Position, publisher: str, sub_id: str, topic: str) -> Json:
    settled = position.settled[publisher]
    processed = settled[0][1] if settled and settled[0][0] <= 1 else 0
    persisted = position.persisted.get(publisher)
    return {
        "sub_id": sub_id,
        "topic": topic,
        "publisher": publisher,
        "processed": processed,
        "persisted": persisted,
        "settled": settled,
        "resume": processed if persisted is None else min(processed, persisted),
    }


def _told(
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


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2_048

    def __init__(self, address: Any, handler: Any, server: Server) -> None:
        self.double = server
        self._open: set[Any] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        for request in list(self._open):
            # Its thread may well be ending it at this moment.
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a consumer that went away is what many tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def log_message(self, *_: object) -> None: ...

    def date_time_string(self, timestamp: float | None = None) -> str:
        double = self.server.double
        if double.date_of is not None:
            return double.date_of()
        shifted = (timestamp or time.time()) + double.date_shift
        return super().date_time_string(shifted)

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        double, body = self.server.double, self._body()
        with double.changed:
            double.requests.append((self.command, self.path, body))
            double.headers.append({k.lower(): v for k, v in self.headers.items()})
            double.changed.notify_all()
        address = urlsplit(self.path)
        path = address.path.removeprefix("/api/v1")
        fault = double.fault(path)
        if fault:
            self._answer(fault.status, {"detail": "so the test wants"}, fault.headers)
        elif self.headers.get("Authorization") != f"Bearer {double.key}":
            self._answer(401, {"detail": "no key is known by this name"})
        elif path == "/skips/stream":
            self._stream(parse_qsl(address.query))
        else:
            self._call(path, parse_qsl(address.query), body)

    def _call(self, path: str, query: list[tuple[str, str]], body: Json) -> None:
        double = self.server.double
        if path in double.forged:
            self._answer(HTTPStatus.OK, double.forged[path])
            return
        try:
            answer = double.call(self.command, path, query, body)
        except LookupError:
            self._answer(HTTPStatus.NOT_FOUND, {"detail": "there is no such thing"})
            return
        if "results" in answer:
            answer["results"] = [double.rewords(one) for one in answer["results"]]
        if self.command == "POST" and double.loses_answer():
            self.close_connection = True
            return
        takes_lines = skip_lines.MEDIA_TYPE in self.headers.get("Accept", "")
        if path == "/skips" and takes_lines and double.has_lines:
            self._answer_in_lines(answer)
            return
        self._answer(201 if (self.command, path) == ("POST", "/skips") else 200, answer)

    def _body(self) -> Json:
        whole = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            whole = gzip.decompress(whole)
        parsed: Json = json.loads(whole or b"{}")
        return parsed

    def _answer_in_lines(self, answer: Json) -> None:
        whole = gzip.compress(b"".join(lines_of(answer)))
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", skip_lines.MEDIA_TYPE)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    def _answer(
        self, status: int, answer: Any, headers: dict[str, str] | None = None
    ) -> None:
        whole = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    def _stream(self, query: list[tuple[str, str]]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        after = self.headers.get("Last-Event-ID") or dict(query).get("after")
        topics = [value for name, value in query if name == "topic"]
        group = dict(query).get("consumer_group")
        events = self.server.double.events(topics, group, after)
        try:
            for text in events:
                self.wfile.write(text.encode())
        finally:
            events.close()


@contextmanager
def running() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.thaw()
        server.stop()
