"""Messages that their reader cannot read, in whole or in part."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from poisonguard import Journal, Outcome
from poisonguard.contract import parse_failure
from poisonguard.readers import Headers, Reader
from poisonguard.readers.plain import BytesReader, PlainReader
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.sdk.guard_and_handler_builders import REDRIVE, Failing, guarding, message

HANDLED, SKIPPED = Outcome.HANDLED, Outcome.SKIPPED
POISONED, RELEASE = Outcome.POISONED, Outcome.RELEASE


@dataclass(frozen=True)
class Msg:
    """A message of a client that no reader here knows."""

    body: object


class Evil:
    """A message whose attributes and repr all raise."""

    def __getattribute__(self, name: str) -> Any:
        if name in {"__class__", "__dict__"}:
            return super().__getattribute__(name)
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class ReplayingBytes(BytesReader):
    """Reads text of a topic that replays."""

    replays = True

    def bookmark(self, message: bytes) -> str:
        return message.decode("ascii")


def never(_: object) -> None:
    pytest.fail("the handler ran")


async def never_async(_: object) -> None:
    pytest.fail("the handler ran")


def reported(server: FakeServer) -> list[dict[str, Any]]:
    """Return the reports of the server, parsed as it would parse them."""
    for report in server.reports.failures.values():
        parse_failure(report)
    return list(server.reports.failures.values())


def body(report: dict[str, Any]) -> bytes:
    return base64.b64decode(report["body"])


@pytest.mark.parametrize(
    ("unreadable", "expected_body"),
    [
        ({"no": "bookmark"}, b'{"no":"bookmark"}'),
        ({"body": b"\xff\x00"}, b"\xff\x00"),
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"bytes"), b"bytes"),
        ("text \ud83d", "text \ud83d".encode("utf-8", "surrogatepass")),
        (Msg(b"\xff"), b"\xff"),
        (Msg("text"), b"text"),
        (SimpleNamespace(value=b"v"), b"v"),
        (Msg({"a": 1}), b"Msg(body={'a': 1})"),
        (("method", "properties", b"\xff"), b"\xff"),
        ((b"1-0", {b"body": b"\xff", b"k": b"v"}), b"\xff"),
        ((), b"()"),
        (None, b"None"),
        (13, b"13"),
        ({"a": {1, 2}}, b'{"a":"{1, 2}"}'),
        (Evil(), b"<Evil without a repr: RuntimeError>"),
    ],
    ids=[
        *("mapping", "mapping with a body", "bytes", "bytearray", "broken text"),
        *(
            "object of bytes",
            "object of text",
            "object of a value",
            "object of neither",
        ),
        *("delivery", "entry", "empty tuple"),
        *("None", "number", "mapping of no JSON", "evil"),
    ],
)
def test_an_unreadable_message_is_poison_with_its_recovered_bytes(
    server: FakeServer, unreadable: object, expected_body: bytes
) -> None:
    server.replays = True
    with guarding(server, reader=PlainReader(replays=True)) as guard:
        outcome = guard.handle(unreadable, never)

    (report,) = reported(server)
    assert outcome is POISONED
    assert (report["cause"], body(report)) == ("undecodable", expected_body)
    assert report["exception"]["type"].endswith("Error")


def test_an_unreadable_message_without_bytes_stays_with_its_broker(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with guarding(server, hold_for=0.05) as guard:
        outcomes = [guard.handle(each, never) for each in (object(), b"bytes")]

    assert outcomes == [RELEASE, POISONED]
    assert [body(report) for report in reported(server)] == [b"bytes"]
    assert "nothing of it can be kept" in caplog.text


def test_tasks_poison_unreadable_messages_too(server: FakeServer) -> None:
    async def main() -> Outcome:
        with guarding(server) as guard:
            return await guard.handle_async(Msg(b"body"), never_async)

    assert asyncio.run(main()) is POISONED
    assert body(reported(server)[0]) == b"body"


def test_an_unreadable_message_is_released_while_the_server_is_away(
    server: FakeServer,
) -> None:
    with guarding(server, hold_for=0.1) as guard:
        server.stop()
        away = guard.handle(Msg(b"body"), never)
        server.start()
        back = guard.handle(Msg(b"body"), never)

    assert (away, back) == (RELEASE, POISONED)
    assert len(reported(server)) == 1


def test_an_unreadable_message_is_skipped_when_delivered_again(
    server: FakeServer,
) -> None:
    server.replays = True
    with guarding(server, reader=ReplayingBytes()) as guard:
        first = [guard.handle(m, lambda _: None) for m in (b"good", b"\xff", b"\xfe")]
        again = [guard.handle(m, lambda _: None) for m in (b"good", b"\xff", b"\xfe")]

    assert first == [HANDLED, POISONED, POISONED]
    assert again == [HANDLED, SKIPPED, SKIPPED]
    assert len(reported(server)) == 2


def test_messages_with_equal_descriptions_stay_distinct(
    server: FakeServer,
) -> None:
    server.replays = True
    with guarding(server, reader=PlainReader(replays=True)) as guard:
        outcomes = [guard.handle(object(), never) for _ in range(3)]

    first, second, third = reported(server)
    assert outcomes == [POISONED] * 3
    assert len({report["bookmark"] for report in (first, second, third)}) == 3
    assert first["content_type"] == "text/x-python-repr; charset=utf-8"
    assert "replays" not in first


def test_a_guard_with_the_wrong_reader_stops_and_says_so(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with guarding(server, hold_for=0.05) as guard:
        outcomes = [guard.handle(Msg(f"m-{n}"), never) for n in range(51)]
        state = guard.health()["state"]

    assert outcomes == [POISONED] * 49 + [RELEASE] * 2
    assert state == "paused"
    assert all(report["suspected"] for report in reported(server))
    assert "PlainReader" in caplog.text
    assert "give the guard a reader of your client" in caplog.text


@pytest.mark.parametrize("seq", [-5, 1.5, "7", None, 2**64, [1]])
def test_an_invalid_number_is_replaced_by_one_of_the_bookmark(
    server: FakeServer, tmp_path: Any, seq: object
) -> None:
    options: dict[str, Any] = {"reader": PlainReader(seq="seq"), "concurrency": 1}
    with guarding(server, journal=Journal(tmp_path), **options) as guard:
        outcomes = [
            guard.handle({"bookmark": f"b-{n}", "seq": seq}, lambda _: None)
            for n in range(3)
        ]
        failed = guard.handle({"bookmark": "b-9", "seq": seq}, Failing(ValueError()))

    assert set(outcomes) <= {HANDLED, POISONED}
    assert failed is POISONED
    assert all(report["cause"] for report in reported(server))


class Partly(Reader):
    """Reads what is a callable only when it is called."""

    def bookmark(self, message: Any) -> str:
        return "b-1"

    def body(self, message: Any) -> bytes:
        value: bytes = _value(message, "body", b"body")
        return value

    def headers(self, message: Any) -> Headers:
        value: Headers = _value(message, "headers", ())
        return value

    def redrive(self, message: Any) -> str | None:
        return None

    def publisher(self, message: Any) -> str | None:
        value: str | None = _value(message, "publisher", None)
        return value

    def seq(self, message: Any) -> int | None:
        value: int | None = _value(message, "seq", None)
        return value

    def content_type(self, message: Any) -> str | None:
        value: str | None = _value(message, "content_type", None)
        return value

    def dequeue_count(self, message: Any) -> int | None:
        value: int | None = _value(message, "dequeue_count", None)
        return value

    def enqueued_at(self, message: Any) -> datetime | None:
        value: datetime | None = _value(message, "enqueued_at", None)
        return value


def _value(message: dict[str, Any], name: str, otherwise: Any) -> Any:
    value = message.get(name, otherwise)
    return value() if callable(value) else value


def _raise() -> None:
    raise LookupError("not there")


@pytest.mark.parametrize(
    "members",
    [
        {"body": _raise},
        {"body": None},
        {"body": {"not": "bytes"}},
        {"headers": _raise},
        {"headers": 7},
        {"headers": [("a", 1), (b"b", None)]},
        {"publisher": "half a \ud83d"},
        {"publisher": _raise, "seq": -1},
        {"seq": "7"},
        {"content_type": "x" * 200_000},
        {"content_type": _raise},
        {"dequeue_count": 2**40},
        {"dequeue_count": True},
        {"enqueued_at": "2026-11-20"},
        {"enqueued_at": datetime(2026, 11, 20)},  # noqa: DTZ001 - the point of it
        {"enqueued_at": _raise},
    ],
    ids=[
        *("body raises", "body None", "body mapping"),
        *("headers raise", "headers number", "headers not of bytes"),
        *("publisher broken", "publisher raises", "seq text"),
        *("type long", "type raises", "count large", "count bool"),
        *("age text", "age without zone", "age raises"),
    ],
)
def test_unreadable_optional_facts_do_not_fail_a_message(
    server: FakeServer, members: dict[str, Any]
) -> None:
    with guarding(server, reader=Partly()) as guard:
        handled = guard.handle(members, lambda _: None)
        failed = guard.handle(members, _failing)

    (report,) = reported(server)
    assert (handled, failed) == (HANDLED, POISONED)
    assert (report["cause"], report["exception"]["type"]) == ("exhausted", "ValueError")


def _failing(_: object) -> None:
    raise ValueError("the handler's own")


def test_ids_that_no_report_has_room_for_are_kept_by_their_digest(
    server: FakeServer,
) -> None:
    long = {"bookmark": "b" * 1_000_000, "message_id": "m" * 1_000_000}
    with guarding(server) as guard:
        outcomes = [guard.handle(message(**long), _failing) for _ in range(2)]

    first = reported(server)[0]
    assert outcomes == [POISONED, POISONED]
    assert first["bookmark"].startswith("sha256-")
    assert first["message_id"].startswith("sha256-")


def test_a_message_without_a_bookmark_is_handled_and_known_by_its_body(
    server: FakeServer,
) -> None:
    with guarding(server) as guard:
        handled = guard.handle(message(""), lambda _: None)
        failed = guard.handle(message(""), _failing)

    (report,) = reported(server)
    assert (handled, failed) == (HANDLED, POISONED)
    assert report["bookmark"].startswith("sha256:")


def test_a_partly_unreadable_redriven_message_is_reported_as_the_same(
    server: FakeServer,
) -> None:
    members = {
        "bookmark": "b",
        "body": {1, 2},
        "headers": {"x-poisonweb-redrive": REDRIVE},
    }
    with guarding(server) as guard:
        outcome = guard.handle(members, _failing)

    (report,) = reported(server)
    assert (outcome, report["redrive"]) == (POISONED, REDRIVE)
    assert json.loads(body(report)) == "{1, 2}"
