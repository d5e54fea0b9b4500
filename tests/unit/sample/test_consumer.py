from __future__ import annotations

import threading
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from poisonweb.sample.consumer import SampleConsumer
from poisonweb.sample.consumers_and_their_topics import BILLING as OF
from poisonweb.sample.event_ledger import (
    Ledger,
    LedgerNotWritten,
    Tally,
    What,
    read,
    tally,
)
from poisonweb.sample.guards import Guards
from tests.sdk.fake_poisonweb_server import FakeServer
from tests.unit.sample.conftest import Consume
from tests.waiting import wait_until

REDRIVE = "123e4567-e89b-12d3-a456-426614174000.0a1b"


class Fails:
    """A handler that raises what it is given, one error a call, then nothing."""

    version = "7"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.bodies: list[bytes] = []

    def handle(self, body: bytes) -> None:
        self.bodies.append(body)
        if self.errors:
            raise self.errors.pop(0)


class Refuses(Fails):
    """A handler that never can do with one body."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    def handle(self, body: bytes) -> None:
        super().handle(body)
        if body == self._body:
            raise ValueError(body)


class Released(Fails):
    """A handler that has a new release after each message."""

    @property
    def version(self) -> str:  # type: ignore[override]
        return str(len(self.bodies))


def whats(ledger: Ledger) -> list[What]:
    return [line.what for line in read(ledger.path)]


def reports(server: FakeServer) -> list[dict[str, Any]]:
    return list(server.reports.failures.values())


def hand_out(redis: Redis, body: str) -> bytes:
    """Leave a message with the consumer, as one that was killed leaves it."""
    redis.xgroup_create(OF.topic, OF.consumer_group, id="0", mkstream=True)
    bookmark: Any = redis.xadd(OF.topic, {"body": body})
    redis.xreadgroup(OF.consumer_group, OF.client_name, {OF.topic: ">"})
    return bytes(bookmark)


def test_a_failure_is_reported_whole(
    redis: Redis, server: FakeServer, ledger: Ledger, consume: Consume
) -> None:
    fields: dict[Any, Any] = {"body": b"\xff\x00", "a": "1", "b": ""}
    bookmark: Any = redis.xadd(OF.topic, fields)

    consume(Fails(KeyError("customer_id")))

    (report,) = reports(server)
    expected = {
        "topic": "orders",
        "consumer_group": "billing",
        "client_name": "billing-1",
        "bookmark": bookmark.decode(),
        "cause": "fatal",
        "attempts": 1,
        "handler_version": "7",
    }
    assert {name: report[name] for name in expected} == expected
    assert b64decode(report["body"]) == b"\xff\x00"
    headers = [(name, b64decode(value)) for name, value in report["headers"]]
    assert headers == [("a", b"1"), ("b", b"")]
    raised = report["exception"]
    assert (raised["type"], raised["message"]) == ("KeyError", "'customer_id'")
    assert "poisonguard" not in raised["traceback"]
    (line,) = read(ledger.path)
    assert (line.what, line.error) == (What.FAILED, "KeyError")


def test_a_handled_message_needs_no_line(
    redis: Redis, server: FakeServer, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "good"})

    consume(Fails())

    assert (whats(ledger), reports(server)) == ([], [])


def test_what_is_done_is_counted(
    redis: Redis, server: FakeServer, consume: Consume
) -> None:
    for body in ("bad", "good", "better"):
        redis.xadd(OF.topic, {"body": body})

    consume(Fails(ValueError()))

    totals = server.reports.totals()
    assert (totals["handled"], totals["failed"]) == (2, 1)


def test_a_time_out_is_tried_again(
    redis: Redis, server: FakeServer, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "slow"})
    handler = Fails(TimeoutError(), TimeoutError())

    consume(handler)

    assert handler.bodies == [b"slow"] * 3
    assert reports(server) == []
    nothing = Tally(poisons=0, recurrences=0, confirmations=0)
    assert tally(read(ledger.path)) == {OF.topic: nothing}


def test_the_third_time_out_exhausts(
    redis: Redis, server: FakeServer, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "slow"})

    consume(Fails(TimeoutError(), TimeoutError(), TimeoutError()))

    (report,) = reports(server)
    assert (report["cause"], report["attempts"]) == ("exhausted", 3)


def test_a_redriven_message_that_fails_is_known_to_be_the_same(
    redis: Redis, server: FakeServer, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "bad", "x-poisonweb-redrive": REDRIVE})

    consume(Fails(ValueError()))

    (report,) = reports(server)
    (line,) = read(ledger.path)
    assert report["redrive"] == REDRIVE
    assert (line.what, line.redrive) == (What.FAILED_AGAIN, REDRIVE)


def test_a_redriven_message_that_is_handled_is_noted_and_confirmed(
    redis: Redis, server: FakeServer, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "good", "x-poisonweb-redrive": REDRIVE})

    consume(Fails())

    (line,) = read(ledger.path)
    assert (line.what, line.redrive) == (What.HANDLED, REDRIVE)
    assert list(server.reports.confirmations) == [REDRIVE]


def test_pending_messages_are_handled_before_new_ones(
    redis: Redis, ledger: Ledger, consume: Consume
) -> None:
    hand_out(redis, "old")
    redis.xadd(OF.topic, {"body": "new"})
    handler = Fails()

    consume(handler)

    # It may have been noted as failed before the process died, so it is noted.
    assert (handler.bodies, whats(ledger)) == ([b"old", b"new"], [What.HANDLED])


def test_a_deleted_entry_is_settled(redis: Redis, consume: Consume) -> None:
    redis.xdel(OF.topic, hand_out(redis, "old"))
    redis.xadd(OF.topic, {"body": "new"})
    handler = Fails()

    consume(handler)

    assert handler.bodies == [b"new"]


def test_a_message_that_cannot_be_reported_stays_pending_and_is_read_again(
    redis: Redis, server: FakeServer, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISONGUARD_HOLD_FOR", "0.1")
    answers = ["not now", "nor now"]
    server.reports.rejects = lambda _: answers.pop() if answers else None
    hand_out(redis, "bad")
    redis.xadd(OF.topic, {"body": "good"})
    handler = Refuses(b"bad")

    consume(handler)

    assert len(reports(server)) == 1
    assert handler.bodies == [b"bad", b"good", b"bad", b"bad"]


def test_waits_for_a_poisonweb_that_is_away(
    redis: Redis, server: FakeServer, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "bad"})
    server.stop()
    back = threading.Timer(0.5, server.start)
    back.start()

    consume(Fails(ValueError()))

    back.join()
    assert len(reports(server)) == 1


def test_each_release_of_the_handler_has_its_own_guard(
    redis: Redis, server: FakeServer, consume: Consume
) -> None:
    for body in ("bad", "good", "worse"):
        redis.xadd(OF.topic, {"body": body})
    handler = Released(ValueError(), ValueError(), ValueError())

    consume(handler)

    assert handler.bodies == [b"bad", b"good", b"worse"]
    assert [report["handler_version"] for report in reports(server)] == ["0", "1", "2"]


def test_a_message_does_not_fail_when_the_ledger_cannot_be_written(
    redis: Redis, server: FakeServer, guards: Guards, tmp_path: Path
) -> None:
    redis.xadd(OF.topic, {"body": "good", "x-poisonweb-redrive": REDRIVE})
    lost = Ledger(tmp_path / "lost")
    lost.path.unlink()
    lost.path.mkdir()
    consumer = SampleConsumer(
        redis, OF, Fails(), guards=guards, ledger=lost, stop=threading.Event()
    )

    with pytest.raises(LedgerNotWritten):
        consumer.run()

    groups: Any = redis.xinfo_groups(OF.topic)
    (group,) = groups
    assert group["pending"] == 1
    assert (reports(server), dict(server.reports.confirmations)) == ([], {})


def test_a_guard_reads_the_key_that_is_there_now(
    redis: Redis, server: FakeServer, consume: Consume, tmp_path: Path
) -> None:
    key = tmp_path / "sample-api-key"
    right = key.read_text()
    key.write_text("of yesterday")
    redis.xadd(OF.topic, {"body": "bad"})
    renewal = threading.Timer(0.3, key.write_text, (right,))
    renewal.start()

    consume(Fails(ValueError()))

    renewal.join()
    wait_until(lambda: len(reports(server)) == 1)
