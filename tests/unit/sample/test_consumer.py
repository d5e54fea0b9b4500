from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from poisonweb.sample.consumer import Consumer, Handler
from poisonweb.sample.counters import Counters
from poisonweb.sample.ledger import Ledger, What, read
from poisonweb.sample.subscriptions import BILLING as OF
from tests.unit.sample.waiting import eventually

Consume = Callable[[Handler], None]


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


@pytest.fixture
def consume(redis: Redis, ledger: Ledger) -> Consume:
    """Run a consumer until it has settled all there is."""

    def run(handler: Handler) -> None:
        stop = threading.Event()
        consumer = Consumer(
            redis, OF, handler, ledger=ledger, counters=Counters(), stop=stop
        )
        thread = threading.Thread(target=consumer.run)
        thread.start()
        try:
            eventually(lambda: is_settled(redis))
        finally:
            stop.set()
            thread.join()

    return run


def is_settled(redis: Redis) -> bool:
    groups: Any = redis.xinfo_groups(OF.topic) if redis.exists(OF.topic) else []
    newest: Any = redis.xrevrange(OF.topic, count=1)
    return any(
        not group["pending"] and [group["last-delivered-id"]] == [i for i, _ in newest]
        for group in groups
    )


def dead_letters(redis: Redis) -> list[dict[bytes, bytes]]:
    found: Any = redis.xrange(OF.dead_letter_queue)
    return [fields for _, fields in found]


def whats(ledger: Ledger) -> list[What]:
    return [line.what for line in read(ledger.path)]


def test_a_failure_goes_to_the_dead_letter_queue_whole(
    redis: Redis, ledger: Ledger, consume: Consume
) -> None:
    fields: dict[Any, Any] = {"a": "1", "body": b"\xff\x00", "b": ""}
    bookmark: Any = redis.xadd(OF.topic, fields)

    consume(Fails(KeyError("customer_id")))

    (letter,) = dead_letters(redis)
    assert list(letter.items())[:3] == [
        (b"a", b"1"),
        (b"body", b"\xff\x00"),
        (b"b", b""),
    ]
    story = {name: value for name, value in letter.items() if name.startswith(b"x-")}
    assert b"Traceback (most recent call last)" in story.pop(b"x-exception-traceback")
    assert story.pop(b"x-failed-at").endswith(b"+00:00")
    assert story == {
        b"x-poison-cause": b"fatal",
        b"x-exception-type": b"KeyError",
        b"x-exception-message": b"'customer_id'",
        b"x-original-bookmark": bookmark,
        b"x-consumer-group": b"billing",
        b"x-client-name": b"billing-1",
        b"x-attempts": b"1",
        b"x-handler-version": b"7",
    }
    assert whats(ledger) == [What.FAILED]


def test_a_handled_message_needs_no_line(
    redis: Redis, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "good"})

    consume(Fails())

    assert (whats(ledger), dead_letters(redis)) == ([], [])


def test_a_time_out_is_tried_again(redis: Redis, consume: Consume) -> None:
    redis.xadd(OF.topic, {"body": "slow"})
    handler = Fails(TimeoutError(), TimeoutError())

    consume(handler)

    assert handler.bodies == [b"slow"] * 3
    assert dead_letters(redis) == []


def test_the_third_time_out_exhausts(redis: Redis, consume: Consume) -> None:
    redis.xadd(OF.topic, {"body": "slow"})

    consume(Fails(TimeoutError(), TimeoutError(), TimeoutError()))

    (letter,) = dead_letters(redis)
    assert (letter[b"x-poison-cause"], letter[b"x-attempts"]) == (b"exhausted", b"3")


def test_a_redriven_message_that_fails_takes_its_header_along(
    redis: Redis, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "bad", "x-poisonweb-redrive": "id.mac"})

    consume(Fails(ValueError()))

    (letter,) = dead_letters(redis)
    (line,) = read(ledger.path)
    assert letter[b"x-poisonweb-redrive"] == b"id.mac"
    assert (line.what, line.redrive) == (What.FAILED_AGAIN, "id.mac")


def test_a_redriven_message_that_is_handled_is_noted(
    redis: Redis, ledger: Ledger, consume: Consume
) -> None:
    redis.xadd(OF.topic, {"body": "good", "x-poisonweb-redrive": "id.mac"})

    consume(Fails())

    (line,) = read(ledger.path)
    assert (line.what, line.redrive) == (What.HANDLED, "id.mac")


def test_what_was_handed_out_and_not_settled_comes_first(
    redis: Redis, ledger: Ledger, consume: Consume
) -> None:
    redis.xgroup_create(OF.topic, OF.consumer_group, id="0", mkstream=True)
    redis.xadd(OF.topic, {"body": "old"})
    redis.xreadgroup(OF.consumer_group, OF.client_name, {OF.topic: ">"})
    redis.xadd(OF.topic, {"body": "new"})
    handler = Fails()

    consume(handler)

    # It may have been noted as failed before the process died, so it is noted.
    assert (handler.bodies, whats(ledger)) == ([b"old", b"new"], [What.HANDLED])


def test_what_somebody_deleted_is_settled(redis: Redis, consume: Consume) -> None:
    redis.xgroup_create(OF.topic, OF.consumer_group, id="0", mkstream=True)
    bookmark: Any = redis.xadd(OF.topic, {"body": "old"})
    redis.xreadgroup(OF.consumer_group, OF.client_name, {OF.topic: ">"})
    redis.xdel(OF.topic, bookmark)
    redis.xadd(OF.topic, {"body": "new"})
    handler = Fails()

    consume(handler)

    assert handler.bodies == [b"new"]
