"""Answers and events that no Poisonweb gives: nothing is lost, and it is said."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from poisonguard import Outcome
from poisonguard.bookmarks import BookmarkStore
from poisonguard.errors import Away, GuardError, Refused, StartTimeout
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.threads_shared_by_guards import Connection
from tests.sdk.failure_report_builder import confirmation
from tests.sdk.fake_poisonweb_server import KEY, FakeServer
from tests.sdk.guard_and_handler_builders import Failing, Handler, guarding, message
from tests.waiting import wait_until

DEEP = b"[" * 200_000
# What may come in place of any answer, and of any member of one.
NO_ANSWER: dict[str, Any] = {
    "nothing": b"",
    "HTML": b"<html>",
    "deep": DEEP,
    "null": None,
    "number": 7,
    "text": "ok",
    "list": [],
    "empty": {},
}
INFINITE = b'{"epoch": "e1", "revision": 1e999, "skips": []}'


@pytest.fixture
def store(server: FakeServer) -> Iterator[BookmarkStore]:
    store = BookmarkStore(server.url, KEY, client_name="billing-1", interval=3_600)
    yield store
    server.forged.clear()
    store._closed = "killed"  # which writes nothing more
    store._thread.end()


# Skip lists


@pytest.mark.parametrize(
    "answer",
    [
        *NO_ANSWER.values(),
        {"epoch": "e1", "revision": "x", "skips": []},
        {"epoch": "e1", "revision": 1, "skips": 7},
        {"epoch": "e1", "revision": 1, "skips": [], "suspects": 7},
        INFINITE,
    ],
    ids=[*NO_ANSWER, "revision text", "skips number", "suspects number", "infinite"],
)
def test_a_guard_does_not_start_on_an_unreadable_list(
    answer: Any, server: FakeServer
) -> None:
    server.forged["/skips"] = answer

    wait_until(lambda: re.search("another form|no JSON", why_no_start(server)))

    server.forged.clear()
    with guarding(server) as guard:
        assert guard.handle(message(), Handler()) is Outcome.HANDLED


def why_no_start(server: FakeServer) -> str:
    """Return why a guard has not started; a busy server may not have answered yet."""
    with pytest.raises(StartTimeout) as why, guarding(server, start_timeout=0.3):
        pytest.fail("it started")
    return str(why.value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("unskip", '{"topic": "orders", "id": 1e999}'),
        ("unskip", '{"topic": ["orders"], "id": 1}'),
        ("unskip", "[]"),
        ("unskip", "null"),
        ("fence", '{"topic": "orders", "client_name": "a", "sub_id": "b"}'),
        (
            "fence",
            '{"topic": "orders", "client_name": 1, "sub_id": 2, "epoch": 1e999}',
        ),
        ("skip", "7"),
        ("suspect", '{"id": 1e999}'),
        ("skip", "9" * 5_000),
    ],
)
def test_an_unreadable_event_reloads_the_list(
    kind: str, data: str, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection([server.url], KEY)
    mirror = connection.skip_list(
        topic="orders", consumer_group="billing", handler_version=None
    )
    said = threading.Event()

    def once(epoch: str, at: dict[str, int]) -> str:
        place = ",".join(map(str, at.values()))
        if said.is_set():
            return f"id: {epoch}.{place}\nevent: ping\ndata: {{}}\n\n"
        said.set()
        return f"id: {epoch}.{place}\nevent: {kind}\ndata: {data}\n\n"

    server.skip_list.add(kind="bookmark", value="before")
    connection.start(60)
    server.stream.ping = once
    server.until(said.is_set)
    server.skip_list.add(kind="bookmark", value="after")

    server.until(lambda: "after" in mirror.bookmarks)
    bookmarks = {*mirror.bookmarks}
    snapshots = sum("/skips?" in path for _, path, _ in list(server.requests))
    connection.close(1)
    assert bookmarks == {"before", "after"}
    assert snapshots <= 2
    assert "could not be followed" not in caplog.text


# Reports


@pytest.mark.parametrize(
    "answer",
    [
        *NO_ANSWER.values(),
        {"results": None},
        {"results": [7]},
        {"results": [{}]},
        {"results": [{"status": "created"}] * 2},
    ],
    ids=[*NO_ANSWER, "null results", "result number", "no status", "too many"],
)
def test_a_report_with_a_foreign_answer_is_not_accepted(
    answer: Any, server: FakeServer
) -> None:
    with guarding(server, hold_for=0.05) as guard:
        guard.handle(message("b-0"), Handler())
        server.forged["/failures"] = answer
        forged = guard.handle(message("b-1"), Failing(ValueError()))
        server.forged.clear()
        honest = guard.handle(message("b-1"), Failing(ValueError()))

    assert (forged, honest) == (Outcome.RELEASE, Outcome.POISONED)
    assert [report["bookmark"] for report in server.reports.failures.values()] == [
        "b-1"
    ]


@pytest.mark.parametrize("answer", NO_ANSWER.values(), ids=NO_ANSWER)
def test_heartbeats_are_sent_again_until_they_are_accepted(
    answer: Any, server: FakeServer
) -> None:
    paths = ("/confirmations", "/counters", "/skips/applied")
    server.forged = dict.fromkeys(paths, answer)
    reporter = Reporter(Client([server.url], KEY))
    reporter.confirm(confirmation("redrive.1"))
    skip = server.skip_list.add(kind="bookmark", value="b-1")["id"]
    reporter.count_applied(
        skip=skip, consumer_group="billing", client_name="billing-1", times=3
    )
    assert not reporter.flush(0.5)

    server.forged.clear()

    # Not the server's own wait, which lets no request in while it looks.
    wait_until(lambda: reporter.flush(1))
    server.until(
        lambda: server.reports.confirmations and server.reports.applied[skip] == 3
    )
    reporter.close(1)


# Positions

MARK = {
    "sub_id": "eu",
    "topic": "orders",
    "publisher": "p",
    "processed": 7,
    "persisted": None,
    "settled": [],
}


def opened(**changes: Any) -> dict[str, Any]:
    return {"epoch": 1, "positions": [{**MARK, **changes}]}


@pytest.mark.parametrize(
    "answer",
    [
        *NO_ANSWER.values(),
        {"epoch": 1, "positions": 7},
        {"epoch": 1, "positions": [7]},
        {"epoch": None, "positions": []},
        opened(processed=None),
        opened(processed=2**63),
        opened(processed=-7),
        opened(processed=True),
        opened(settled=[[1]]),
        opened(settled=[[1, 10**30]]),
        opened(settled=[["1", "2"]]),
        opened(persisted="7"),
        json.dumps(opened()).replace("7", "1e999").encode(),
    ],
    ids=[
        *NO_ANSWER,
        *("positions number", "position number", "epoch null", "processed null"),
        *("processed huge", "processed negative", "processed bool", "run of one"),
        *("run huge", "run text", "persisted text", "infinite"),
    ],
)
def test_an_unreadable_position_raises_away(
    answer: Any, server: FakeServer, store: BookmarkStore
) -> None:
    server.forged["/positions/open"] = answer
    with pytest.raises(Away):
        store.open("eu", "orders")

    server.forged.clear()

    assert store.open("eu", "orders").positions == {}
    store.received("eu", "p", 8)
    assert not store.is_settled("eu", "p", 8)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        *((answer, Away) for answer in NO_ANSWER.values()),
        ({"results": [7, 7]}, Away),
        ({"results": [{"status": "ok"}, {}]}, Away),
        ({"results": [{"status": "ok"}]}, Away),
        ({"results": [{"status": "banana"}] * 2}, Refused),
        ({"results": [{"status": None}] * 2}, Refused),
        ({"results": [{"status": ["ok"]}] * 2}, Refused),
    ],
    ids=[
        *NO_ANSWER,
        *("numbers", "no status", "too few", "unknown", "status null", "status list"),
    ],
)
def test_settled_messages_are_written_again_after_a_foreign_answer(
    answer: Any, error: type[GuardError], server: FakeServer, store: BookmarkStore
) -> None:
    for sub_id in ("eu", "us"):
        store.open(sub_id, "orders")
        store.received(sub_id, "p", 1)
        store.settle(sub_id, "p", 1)
    server.forged["/positions/settle"] = answer
    with pytest.raises(error):
        store.flush()
    unwritten, warned = store.health().unwritten, store.health().warnings

    server.forged.clear()
    store.flush()

    assert unwritten == 2
    assert warned
    assert (store.health().unwritten, store.health().warnings) == (0, ())
    assert {
        sub_id: position.settled
        for (_, sub_id, _), position in server.positions.items()
    } == {"eu": {"p": [[0, 1]]}, "us": {"p": [[0, 1]]}}


# Texts of any length


@pytest.mark.parametrize("name", ["topic", "consumer_group", "client_name", "version"])
def test_a_name_of_a_megabyte_is_refused_at_the_start(
    name: str, server: FakeServer
) -> None:
    with pytest.raises(GuardError) as refused, guarding(server, **{name: "x" * 10**6}):
        pytest.fail("it started")

    assert name in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_a_message_with_long_ids_and_headers_is_kept_and_logged_shortened(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * 1_000_000
    messages = message(
        long,
        message_id=long,
        headers={"x-poisonweb-redrive": long, long: long},
        publisher=long,
    )
    with caplog.at_level(logging.INFO), guarding(server) as guard:
        outcome = guard.handle(messages, Failing(ValueError(long)))
        again = guard.handle(messages, Handler())

    (report,) = server.reports.failures.values()
    assert (outcome, again) == (Outcome.POISONED, Outcome.HANDLED)
    assert len(report["bookmark"]) < 100
    assert all(len(record.getMessage()) < 5_000 for record in caplog.records)


# Two of one name


def test_two_guards_of_one_name_lose_nothing_and_charge_no_message(
    server: FakeServer,
) -> None:
    bad = Failing(ValueError(), "b-3", "b-7")
    with guarding(server) as one, guarding(server) as other:
        outcomes = [
            guard.handle(message(f"b-{n}"), bad)
            for n in range(10)
            for guard in ((one, other)[n % 2],)
        ]
        one.close()
        state = other.health()["state"]
        last = other.handle(message("b-10"), bad)

    assert outcomes.count(Outcome.HANDLED) == 8
    assert (last, state) == (Outcome.HANDLED, "running")
    assert sorted(r["bookmark"] for r in server.reports.failures.values()) == [
        "b-3",
        "b-7",
    ]
    server.until(lambda: server.reports.totals()["handled"] == 9)
    assert server.reports.totals()["failed"] == 2


@pytest.mark.parametrize("kind", ["bookmark", "message_id"])
def test_a_skip_of_a_megabyte_is_applied(kind: str, server: FakeServer) -> None:
    long = "x" * 1_000_000
    with guarding(server) as guard:
        server.skip_list.add(kind=kind, value="first")
        server.skip_list.add(kind=kind, value=long)
        server.skip_list.add(kind=kind, value="last")
        server.until(lambda: len(guard.skips) >= 2)
        server.until(lambda: "last" in getattr(guard.skips, f"{kind}s"))
