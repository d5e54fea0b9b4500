"""A double of Poisonweb's protocol on loopback, with the faults of a real server.

It stores reports as the real one does (a report id, a reporter's sequence, a
confirmation count once), and records all requests. A test makes it stop and return,
freeze, answer an error, commit and lose its answer, cut its streams, change its epoch.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from poisonguard.contract import Invalid
from poisonguard.testing.fake_server_faults import Faults
from poisonguard.testing.fake_server_positions import FakePositions
from poisonguard.testing.fake_server_skip_list import FakeSkipList, Json
from poisonguard.testing.fake_skip_stream import FakeSkipStream
from poisonguard.testing.reports import Reports
from poisonguard.testing.web import Problem, Web

KEY = "pw_of_a_fake_poisonweb"
StatusAndBody = tuple[HTTPStatus, Json]


class Double:
    """Poisonweb as a consumer sees it; `url` stays the same over stop and start."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.requests: list[tuple[str, str, Json]] = []  # method, path with query, body
        self.headers: list[dict[str, str]] = []  # of each request
        self.faults = Faults(self.changed)
        self.skip_list = FakeSkipList(self.changed)
        self.stream = FakeSkipStream(self.skip_list, self.faults, self.changed)
        self.reports = Reports(self.skip_list)
        self.positions = FakePositions(fence=self.skip_list.fence)
        self.key = KEY
        self.forged: dict[str, Any] = {}  # a whole answer, by path
        self.rewords: Callable[[Json], Json] = dict  # each result of a POST
        self.has_lines = True  # as servers have from the release of this SDK on
        self.date_shift = 0.0
        self.date_of: Callable[[], str] | None = None  # in place of the time
        # The answer to each Idempotency-Key, with its request.
        self._answered: dict[str, tuple[object, StatusAndBody]] = {}
        self._port = 0
        self._release_port: Callable[[], object] | None = None
        self._http: Web | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        if self._release_port is not None:
            self._release_port()
        self._http = Web(("127.0.0.1", self._port), self)
        self._port = self._http.server_address[1]
        threading.Thread(
            target=self._http.serve_forever, args=(0.01,), daemon=True
        ).start()

    def stop(self) -> None:
        """Stop the fake Poisonweb as if killed: no port listens, connections break."""
        if self._http is not None:
            http, self._http = self._http, None
            http.shutdown()
            http.server_close()
            self.stream.cut()
            http.break_connections()
            self._release_port = weakref.finalize(self, _hold_port(self._port).close)

    def until(self, true: Callable[[], object], *, timeout: float = 60) -> None:
        """Wait until a condition of the fake server is true; fail after a time-out."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while not true():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise AssertionError("it did not come to be")
                self.changed.wait(min(remaining, 0.02))

    def call(
        self, method: str, path: str, query: list[tuple[str, str]], body: Json
    ) -> Json:
        """Answer one call of Poisonweb's API in the fake server."""
        skip_list, reports, positions = self.skip_list, self.reports, self.positions
        calls: dict[tuple[str, str], Callable[[], Json]] = {
            ("POST", "/failures"): lambda: _each(reports.fail, body["failures"]),
            ("POST", "/confirmations"): lambda: _each(
                reports.confirm, body["confirmations"]
            ),
            ("POST", "/counters"): lambda: self._take_counters(body),
            ("POST", "/skips/applied"): lambda: _each(reports.apply, body["applied"]),
            ("POST", "/skips"): lambda: skip_list.add_requested(body),
            ("GET", "/skips"): lambda: skip_list.snapshot(dict(query)),
            ("POST", "/positions/open"): lambda: positions.open(body),
            ("POST", "/positions/settle"): lambda: _each(
                positions.settle, body["updates"]
            ),
        }
        head, _, last = path.rpartition("/")
        with self.changed:
            self.changed.notify_all()
            if (method, head) == ("DELETE", "/skips"):
                return skip_list.remove(int(last))
            if (method, head) == ("GET", "/poisons"):
                return reports.detail(int(last))
            return calls[method, path]()

    def _take_counters(self, body: Json) -> Json:
        guards = _each(self.reports.note_guard, body.get("guards", []))
        counters = _each(self.reports.count, body["counters"])
        return counters | {"guards": guards["results"]}

    def once(
        self, key: str | None, request: object, act: Callable[[], StatusAndBody]
    ) -> tuple[HTTPStatus, Json, bool]:
        """Do a call of the fake server, or return its earlier answer to the key.

        Return status, answer, and whether it is the earlier one. Raise Problem if the
        idempotency key belongs to another request.
        """
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


def _hold_port(port: int) -> socket.socket:
    """Keep a port from other programs, and refuse its connections, until it is closed.

    Without this, another double that starts meanwhile may be given the port, and answer
    in place of the stopped one.
    """
    holder = socket.socket()
    # Connections that closed lately have the port, too: bind beside them, then let no
    # other program do so.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return holder


def _each(call: Callable[[Json], Json], members: list[Json]) -> Json:
    return {"results": [_judged(call, member) for member in members]}


def _judged(call: Callable[[Json], Json], member: Json) -> Json:
    try:
        return call(member)
    except Invalid as why:
        return {"status": "rejected", "pointer": why.pointer, "detail": why.detail}
