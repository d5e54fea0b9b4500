from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from poisonweb.sample import counters as counting
from poisonweb.sample.api import Api
from poisonweb.sample.counters import Counters, Minute
from poisonweb.sample.courier import Courier
from poisonweb.sample.ledger import Ledger, What
from tests.unit.sample.waiting import eventually


class Desk:
    """A server that takes reports when it is in the mood to."""

    def __init__(self) -> None:
        self.mood: list[int] = []
        self.taken: list[dict[str, Any]] = []
        self.asked: list[int] = []
        desk = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                desk.answer(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Door)

    def answer(self, door: BaseHTTPRequestHandler) -> None:
        body = json.loads(door.rfile.read(int(door.headers["Content-Length"])))
        (members,) = body.values()
        right = door.headers["Authorization"] == "Bearer the key"
        status = self.mood.pop(0) if self.mood else 200 if right else 401
        self.asked.append(len(members))
        if status == 200:
            self.taken += members
        answer = {"results": [{"status": "confirmed"} for _ in members]}
        door.send_response(status)
        door.end_headers()
        door.wfile.write(json.dumps(answer).encode())

    @property
    def redrives(self) -> list[str]:
        return [member["redrive"] for member in self.taken if "redrive" in member]


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    thread = threading.Thread(target=desk.server.serve_forever, args=(0.01,))
    thread.start()
    yield desk
    desk.server.shutdown()
    desk.server.server_close()
    thread.join()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    key = tmp_path / "sample-api-key"
    key.write_text("the key")
    return key


@contextmanager
def carrying(
    desk: Desk, ledger: Ledger, key: Path, counters: Counters | None = None
) -> Iterator[None]:
    stop = threading.Event()
    api = Api(port=desk.server.server_port, key_file=key)
    courier = Courier(api, ledger, counters or Counters(), stop=stop)
    thread = threading.Thread(target=courier.run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def handle(ledger: Ledger, redrive: str) -> None:
    ledger.write(What.HANDLED, topic="orders", bookmark="1-0", redrive=redrive)


def test_confirms_what_was_handled_in_order(
    desk: Desk, ledger: Ledger, key: Path
) -> None:
    ledger.write(What.FAILED, topic="orders", bookmark="1-0")
    ledger.write(What.HANDLED, topic="orders", bookmark="1-0")
    expected = [f"r{n}" for n in range(250)]
    for redrive in expected:
        handle(ledger, redrive)

    with carrying(desk, ledger, key):
        eventually(lambda: len(desk.taken) == 250)

    assert desk.redrives == expected
    assert max(desk.asked) == 100
    assert {member["consumer_group"] for member in desk.taken} == {"billing"}


def test_asks_again_until_it_is_taken(desk: Desk, ledger: Ledger, key: Path) -> None:
    desk.mood = [503, 500]
    handle(ledger, "r1")

    with carrying(desk, ledger, key):
        handle(ledger, "r2")
        eventually(lambda: desk.redrives == ["r1", "r2"])

    assert len(desk.asked) >= 3


def test_waits_for_its_key(desk: Desk, ledger: Ledger, key: Path) -> None:
    key.unlink()
    handle(ledger, "r1")

    with carrying(desk, ledger, key):
        threading.Event().wait(0.2)
        before = desk.redrives
        key.write_text("the key")
        eventually(lambda: desk.redrives == ["r1"])

    assert before == []


def test_another_start_goes_on_where_this_one_ended(
    desk: Desk, ledger: Ledger, key: Path
) -> None:
    handle(ledger, "r1")
    with carrying(desk, ledger, key):
        eventually(lambda: desk.redrives == ["r1"])
    handle(ledger, "r2")

    with carrying(desk, ledger, key):
        eventually(lambda: desk.redrives == ["r1", "r2"])


def test_a_new_ledger_is_read_from_its_beginning(
    desk: Desk, ledger: Ledger, key: Path
) -> None:
    for redrive in ("r1", "r2"):
        handle(ledger, redrive)
    with carrying(desk, ledger, key):
        eventually(lambda: desk.redrives == ["r1", "r2"])
    ledger.path.write_bytes(b"")
    handle(ledger, "r3")

    with carrying(desk, ledger, key):
        eventually(lambda: desk.redrives == ["r1", "r2", "r3"])


def test_counts_of_a_long_outage_are_brought_in_parts(
    desk: Desk, ledger: Ledger, key: Path
) -> None:
    counters, noon = Counters(), datetime(2026, 1, 1, 12, tzinfo=UTC)
    for minute in range(250):
        counters._minutes[noon + timedelta(minutes=minute), "orders"] = Minute()

    with carrying(desk, ledger, key, counters):
        eventually(lambda: len(desk.taken) == 250)

    assert desk.asked == [100, 100, 50]
    assert [member["sequence"] for member in desk.taken] == list(range(1, 251))


def test_counts_are_brought_at_the_end(desk: Desk, ledger: Ledger, key: Path) -> None:
    counters = Counters()

    with carrying(desk, ledger, key, counters):
        counters.add("orders", failed=True, retried=0, seconds=0.0)

    (report,) = desk.taken
    assert (report["failed"], report["handled"]) == (1, 0)
    assert report["minute"] <= counting.this_minute().isoformat()
