"""Lanes: a dead letter stays in its queue until its capture is committed."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any, cast

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import Error, OperationalError, connection
from django.db.utils import DatabaseErrorWrapper
from pytest_django import Settings
from redis import Redis

from apps.bookmarks.models import BookmarkPosition
from apps.brokers.models import Broker, Topic
from apps.capture.intake import services
from apps.capture.lanes import runner
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.models import HeldDeadLetter, Lane
from apps.core import advisory_locks, clock
from apps.core.values_refused_by_postgres import refuses_value
from apps.poison.models import Body, Failure, Poison, Redrive
from apps.poison.states import RedriveOutcome
from poisonguard.contract import HEADERS_LIMIT
from tests.postgres_full_disk_error import full_disk
from tests.triage_operation_runner import redriven
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

STORY: dict[Any, Any] = {
    b"x-poison-cause": b"fatal",
    b"x-exception-type": b"KeyError",
    b"x-exception-message": b"'customer_id'",
    b"x-original-bookmark": b"5-0",
    b"x-consumer-group": b"billing",
    b"x-client-name": b"billing-1",
    b"x-attempts": b"3",
    b"x-failed-at": b"2026-11-20T11:59:00+00:00",
}


def dead_letter(stream: Redis, **fields: bytes) -> bytes:
    named: dict[Any, Any] = {name.encode(): v for name, v in fields.items()}
    return cast(bytes, stream.xadd("orders-poison", {**named, **STORY}))


def draining(topic: Topic, now: datetime) -> Drain:
    return Drain(lane=Lane.objects.possible().get(pk=topic.pk), clock=lambda: now)


def drain(topic: Topic, now: datetime) -> int:
    """Drain once, and return the number of captured letters."""
    before = Lane.objects.get(pk=topic.pk).captured
    with draining(topic, now) as work:
        work.drain_batch(wait=0.0)
        work.monitor_lane()
    return Lane.objects.get(pk=topic.pk).captured - before


def test_a_dead_letter_is_kept_with_its_story_and_leaves_its_queue(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    dead_letter(stream, body=b"\x00\xff", trace=b"\xfe")

    captured = drain(orders, now)

    poison = Poison.objects.get()
    assert (captured, stream.xlen("orders-poison")) == (1, 0)
    assert (poison.cause, poison.error_type, poison.attempts) == (
        "fatal",
        "KeyError",
        3,
    )
    assert (poison.bookmark_text, poison.consumer_group) == ("5-0", "billing")
    body = Body.objects.get()
    assert bytes(body.content) == b"\x00\xff"
    assert [bytes(part) for part in body.headers][:2] == [b"trace", b"\xfe"]


def test_a_crash_between_commit_and_acknowledgement_counts_once(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    dead_letter(stream, body=b"x")

    with draining(orders, now) as work:
        letters = work.reader.read(limit=10, wait=0.0)
        work._capture(letters)  # and here the lane dies
    drain(orders, now)

    assert (Failure.objects.count(), stream.xlen("orders-poison")) == (1, 0)


def test_a_postgres_that_is_away_leaves_the_dead_letter_in_its_queue(
    orders: Topic, stream: Redis, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_letter(stream, body=b"x")

    def away(**_: object) -> None:
        raise OperationalError("the connection is lost")

    with monkeypatch.context() as broken, pytest.raises(OperationalError):
        broken.setattr(services, "write", away)
        drain(orders, now)
    length = stream.xlen("orders-poison")
    drain(orders, now)

    assert (length, Poison.objects.count()) == (1, 1)


def test_a_full_disk_leaves_the_dead_letter_in_its_queue_until_there_is_room(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    dead_letter(stream, body=b"x")

    with full_disk("poison_failure"), pytest.raises(OperationalError, match="space"):
        drain(orders, now)
    length = stream.xlen("orders-poison")
    captured = drain(orders, now)

    assert (length, captured, Poison.objects.count()) == (1, 1, 1)
    assert HeldDeadLetter.objects.count() == stream.xlen("orders-poison") == 0


def test_a_dead_letter_over_the_limit_is_held_at_the_broker_and_the_rest_goes_on(
    orders: Topic, stream: Redis, now: datetime, settings: Settings
) -> None:
    settings.POISONWEB_BODY_LIMIT = 10
    dead_letter(stream, body=b"x" * 11)
    stream.xadd("orders-poison", {b"body": b"small"})

    captured = drain(orders, now)

    row = HeldDeadLetter.objects.get()
    assert (captured, stream.xlen("orders-poison")) == (1, 1)
    assert row.reason == "too large: the limit is 10 bytes"

    settings.POISONWEB_BODY_LIMIT = 100
    drain(orders, now)

    assert (HeldDeadLetter.objects.count(), Poison.objects.count()) == (0, 2)


def test_a_dead_letter_of_too_many_headers_is_held_and_the_rest_goes_on(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    flat = [b"a", b"b"] * (HEADERS_LIMIT + 1)
    stream.execute_command("XADD", "orders-poison", "*", b"body", b"many", *flat)
    dead_letter(stream, body=b"small")

    captured = drain(orders, now)

    row = HeldDeadLetter.objects.get()
    assert (captured, stream.xlen("orders-poison")) == (1, 1)
    assert row.reason == "it has 10001 headers: the limit is 10000"


@pytest.mark.parametrize(
    ("error", "is_to_blame"),
    [
        (psycopg.errors.ProgramLimitExceeded, True),
        (psycopg.errors.CharacterNotInRepertoire, True),
        (psycopg.errors.CheckViolation, True),
        (psycopg.errors.ConnectionFailure, False),
        (psycopg.errors.DiskFull, False),
        (psycopg.errors.TooManyConnections, False),
        (psycopg.errors.AdminShutdown, False),
        (psycopg.errors.DeadlockDetected, False),
        (psycopg.errors.ReadOnlySqlTransaction, False),
        (psycopg.errors.UndefinedTable, False),
        (psycopg.OperationalError, False),
        (psycopg.InterfaceError, False),
        (psycopg.DataError, True),
    ],
)
def test_only_errors_about_a_value_blame_the_letter(
    error: type[psycopg.Error], *, is_to_blame: bool
) -> None:
    with pytest.raises(Error) as raised, DatabaseErrorWrapper(connection):
        raise error

    assert refuses_value(raised.value) == is_to_blame


def test_a_letter_that_postgres_refuses_is_held_and_the_rest_captured(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE poison_body ADD CONSTRAINT hostile"
            " CHECK (content <> 'hostile')"
        )
    for body in [b"a", b"b", b"hostile", b"c"]:
        stream.xadd("orders-poison", {b"body": body})

    captured = drain(orders, now)

    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE poison_body DROP CONSTRAINT hostile")
    assert (captured, stream.xlen("orders-poison")) == (3, 1)
    assert HeldDeadLetter.objects.get().reason.startswith("cannot be stored")


def test_a_redriven_message_comes_back_as_the_same_poison(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    dead_letter(stream, body=b"x")
    drain(orders, now)
    poison = Poison.objects.get()
    token = redriven(poison, now)

    again: dict[Any, Any] = {
        b"x-poisonweb-redrive": token.encode(),
        b"x-original-bookmark": b"9-0",
    }
    stream.xadd("orders-poison", {b"body": b"x", **STORY, **again})
    drain(orders, now)

    poison.refresh_from_db()
    assert (poison.state, poison.recurrences, poison.failures) == ("open", 1, 2)
    assert Redrive.objects.get().outcome == RedriveOutcome.RECURRED


def test_a_message_that_its_consumers_never_settle_is_dead_lettered(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    stream.xadd("orders", {b"body": b"killer"})
    stream.xgroup_create("orders", "billing", id="0")
    stream.xreadgroup("billing", "billing-1", {"orders": ">"})
    for _ in range(3):
        stream.xclaim("orders", "billing", "billing-1", 0, ["0-0"])
        pending = cast(Any, stream.xpending_range("orders", "billing", "-", "+", 1))
        stream.xclaim("orders", "billing", "billing-1", 0, [pending[0]["message_id"]])
    time.sleep(0.25)  # the topic's visibility timeout is 0.2 s

    with draining(orders, now) as work:
        work.monitor_lane()
        work.drain_batch(wait=0.0)

    poison = Poison.objects.get()
    assert (poison.cause, poison.consumer_group) == ("max_dequeue_count", "billing")


def test_a_lane_notes_how_far_each_consumer_group_has_read(
    orders: Topic, stream: Redis, now: datetime
) -> None:
    first = stream.xadd("orders", {b"body": b"1"})
    stream.xadd("orders", {b"body": b"2"})
    stream.xgroup_create("orders", "billing", id="0")
    stream.xreadgroup("billing", "billing-1", {"orders": ">"}, count=1)

    drain(orders, now)

    position = BookmarkPosition.objects.get()
    mark_ = position.marks.get()
    assert position.consumer_group == "billing"
    assert (mark_.bookmark, mark_.pending) == (cast(bytes, first).decode(), 1)


def test_only_one_lane_drains_a_topic(orders: Topic) -> None:
    with (
        advisory_locks.attempt(f"lane:{orders.pk}"),
        pytest.raises(CommandError, match="already"),
    ):
        call_command("capture", "orders")


def test_lanes_wait_for_a_broker_that_is_away_and_say_so(
    orders: Topic, stream: Redis, redis_url: str
) -> None:
    Broker.objects.update(url="redis://127.0.0.1:1/0")
    dead_letter(stream, body=b"x")
    stop = threading.Event()
    serving = threading.Thread(
        target=runner.serve, kwargs={"stop": stop, "clock": clock.now}
    )
    serving.start()
    try:
        wait_until(lambda: Lane.objects.get().state == "away")
        Broker.objects.update(url=redis_url)
        wait_until(Poison.objects.exists)
    finally:
        stop.set()
        serving.join(timeout=60)

    assert not serving.is_alive()
