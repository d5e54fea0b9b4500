"""What only Redis Streams do."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Thread, Timer
from urllib.parse import urlsplit

import pytest

from apps.brokers import adapters
from apps.brokers.adapter_contract import (
    BATCH_BYTES,
    Header,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.adapters.redis_streams.reader import RedisDeadLetterReader
from apps.brokers.adapters.redis_streams.settings import RedisSettings
from apps.brokers.failure_headers import own_documented_headers as vocabulary
from apps.brokers.models import Broker
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.errors import Invalid, Refused, Unavailable
from tests.contracts.cutting_and_counting_proxies import cutting
from tests.contracts.redis_streams_topic_fixture import RedisStage
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    VISIBILITY_TIMEOUT,
    outbound,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"

ENTRIES: dict[str, tuple[Header, ...]] = {
    "no body field": ((b"a", b"1"), (b"b", b"2")),
    "an empty body field": ((b"body", b""), (b"a", b"1")),
    "an empty body field behind": ((b"a", b"1"), (b"body", b"")),
    "the body in the middle": ((b"a", b"1"), (b"body", b"x"), (b"b", b"2")),
    "two bodies": ((b"body", b"x"), (b"body", b"y")),
    "a body and an empty one": ((b"body", b"x"), (b"a", b"1"), (b"body", b"")),
    "an empty body and another": ((b"body", b""), (b"body", b"x")),
    "nothing but an empty name": ((b"", b""),),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_redriven_entry_has_the_same_fields(
    redis_stage: RedisStage, name: str
) -> None:
    redis_stage.add(redis_stage.queue, *ENTRIES[name])
    (letter,) = redis_stage.reader().read(limit=1, wait=0)

    redis_stage.publisher().publish(
        [Outbound(topic=redis_stage.topic, body=letter.body, headers=letter.headers)]
    )

    assert redis_stage.fields(redis_stage.topic) == [ENTRIES[name]]


def test_the_body_field_is_an_option(redis_stage: RedisStage) -> None:
    redis_stage.options = {"body_field": "payload"}
    redis_stage.add(redis_stage.queue, (b"payload", b"x"), (b"body", b"y"))
    (letter,) = redis_stage.reader().read(limit=1, wait=0)

    redis_stage.publisher().publish([outbound(redis_stage.topic, 0)])

    assert (letter.body, letter.headers) == (b"x", ((b"body", b"y"),))
    assert redis_stage.fields(redis_stage.topic) == [((b"payload", b"0"),)]


@pytest.mark.parametrize("body", [b"true", b""])
def test_a_producers_header_that_looks_like_the_body_is_refused(
    redis_stage: RedisStage, body: bytes
) -> None:
    headers = ((b"a", b"1"), (b"body", b"false"))
    of_producer, of_broker = (
        Outbound(
            topic=redis_stage.topic,
            body=body,
            headers=headers,
            is_by_producer=is_by_producer,
        )
        for is_by_producer in (True, False)
    )

    outcomes = redis_stage.publisher().publish([of_producer, of_broker])

    kinds = [OutcomeKind.REFUSED, OutcomeKind.SENT]
    assert [outcome.kind for outcome in outcomes] == kinds
    assert "its header 'body' for the body: rename it" in outcomes[0].detail
    assert len(redis_stage.fields(redis_stage.topic)) == 1


def test_one_bad_message_keeps_no_other_from_being_sent(
    redis_stage: RedisStage,
) -> None:
    redis_stage.client.set(f"{redis_stage.topic} no stream", "text")
    nothing = Outbound(topic=redis_stage.topic, body=b"", headers=())
    too_many = Outbound(
        topic=redis_stage.topic, body=b"x", headers=((b"a", b"b"),) * 500_001
    )
    window = [
        outbound(redis_stage.topic, 0),
        outbound(f"{redis_stage.topic} no stream", 1),
        nothing,
        outbound(redis_stage.topic, 2),
        too_many,
        outbound(redis_stage.topic, 3),
    ]

    outcomes = redis_stage.publisher().publish(window)

    yes, no = OutcomeKind.SENT, OutcomeKind.REFUSED
    kinds = [outcome.kind for outcome in outcomes]
    assert kinds == [yes, no, no, yes, no, yes]
    assert "WRONGTYPE" in outcomes[1].detail
    assert "no stream entry" in outcomes[2].detail
    assert redis_stage.contents(redis_stage.topic) == [
        (b"0", ()),
        (b"2", ()),
        (b"3", ()),
    ]


def test_a_full_redis_is_away_and_refuses_no_message(redis_stage: RedisStage) -> None:
    redis_stage.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable, match="OOM"):
            redis_stage.publisher().publish([outbound(redis_stage.topic, 0)])
        with pytest.raises(Unavailable, match="OOM"):
            redis_stage.reader().dead_letter_exhausted()
    finally:
        redis_stage.client.config_set("maxmemory", 0)


def test_a_redis_that_fills_up_midway_leaves_the_rest_unsent(
    redis_stage: RedisStage,
) -> None:
    large = Outbound(topic=redis_stage.topic, body=b"x" * 1_000_000, headers=())
    used = redis_stage.client.info("memory")["used_memory"]
    redis_stage.client.config_set("maxmemory", used + 10_000_000)
    try:
        outcomes = redis_stage.publisher().publish([large] * 40)
    finally:
        redis_stage.client.config_set("maxmemory", 0)

    confirmed = [each for each in outcomes if each.kind is OutcomeKind.SENT]
    unsent = [each for each in outcomes if each.kind is OutcomeKind.UNSENT]
    assert confirmed
    assert unsent
    assert len(confirmed) + len(unsent) == len(outcomes)
    assert all("OOM" in each.detail for each in unsent)
    assert len(redis_stage.contents(redis_stage.topic)) == len(confirmed)


@pytest.mark.parametrize("seed", range(30))
def test_a_message_is_sent_only_when_redis_answered(
    redis_stage: RedisStage, seed: int
) -> None:
    handshake, reply = 150, len("$15\r\n1700000000000-0\r\n") + 2
    cut = random.Random(seed).randrange(handshake, handshake + 100 * reply)
    window = [outbound(redis_stage.topic, n) for n in range(100)]

    with cutting(port_of(redis_stage), after_replies=cut) as port:
        redis_stage.url = with_port(redis_stage.url, port)
        outcomes = redis_stage.publisher().publish(window)

    confirmed = [n for n, one in enumerate(outcomes) if one.kind is OutcomeKind.SENT]
    stored = [int(body) for body, _ in redis_stage.contents(redis_stage.topic)]
    assert {one.kind for one in outcomes[len(confirmed) :]} <= {OutcomeKind.UNKNOWN}
    assert confirmed == list(range(len(confirmed)))
    assert len(confirmed) >= (cut - handshake) // reply - 20
    assert set(confirmed) <= set(stored)
    assert len(stored) == len(set(stored))


@pytest.mark.parametrize("seed", range(20))
def test_what_was_sent_before_redis_was_killed_is_there_afterwards(
    mortal_stage: RedisStage, seed: int
) -> None:
    killer = Thread(target=kill_at_length, args=(mortal_stage, seed))
    killer.start()

    outcomes = publish_until_away(mortal_stage)
    killer.join()
    mortal_stage.come_back()

    entries = mortal_stage.raw("XRANGE", mortal_stage.topic, "-", "+")
    there = {entry[0].decode() for entry in entries}
    confirmed = {o.bookmark for o in outcomes if o.kind is OutcomeKind.SENT}
    unknown = [o for o in outcomes if o.kind is OutcomeKind.UNKNOWN]
    assert confirmed <= there
    assert len(there) <= len(confirmed) + len(unknown) == len(outcomes)


def test_a_redis_that_hangs_is_away(
    redis_stage: RedisStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "apps.brokers.adapters.redis_streams.redis_connection.REPLY_SECONDS", 3.0
    )
    publisher, reader = redis_stage.publisher(), redis_stage.reader()
    (before,) = publisher.publish([outbound(redis_stage.topic, 0)])
    assert before.kind is OutcomeKind.SENT
    reader.read(limit=1, wait=0)

    os.kill(redis_stage.server.process.pid, signal.SIGSTOP)
    try:
        (outcome,) = publisher.publish([outbound(redis_stage.topic, 1)])
        with pytest.raises(Unavailable):
            reader.read(limit=1, wait=0)
    finally:
        os.kill(redis_stage.server.process.pid, signal.SIGCONT)

    assert outcome.kind is OutcomeKind.UNKNOWN


def test_a_key_of_another_type_is_refused_by_name(redis_stage: RedisStage) -> None:
    redis_stage.client.set(redis_stage.queue, "text")
    redis_stage.client.set(redis_stage.topic, "text")

    calls: list[Callable[[], object]] = [
        lambda: redis_stage.reader().read(limit=1, wait=0),
        redis_stage.reader().dead_letter_exhausted,
        redis_stage.admin().consumers,
        redis_stage.admin().depth,
    ]
    for call in calls:
        with pytest.raises(Refused, match="WRONGTYPE") as refused:
            call()
        assert redis_stage.topic in str(refused.value)


def test_reading_goes_on_after_the_queue_was_flushed(redis_stage: RedisStage) -> None:
    redis_stage.put(redis_stage.queue, b"before")
    reader = redis_stage.reader()
    reader.read(limit=1, wait=0)
    redis_stage.client.delete(redis_stage.queue)
    redis_stage.put(redis_stage.queue, b"after")

    letters = reader.read(limit=5, wait=0)

    assert [letter.body for letter in letters] == [b"after"]


def test_a_queue_deleted_while_we_wait_is_no_error(redis_stage: RedisStage) -> None:
    reader = redis_stage.reader()
    reader.read(limit=1, wait=0)
    deleter = Timer(0.2, redis_stage.client.delete, (redis_stage.queue,))
    deleter.start()

    letters = reader.read(limit=1, wait=0.5)

    deleter.join()
    assert letters == []


def test_dead_letters_that_others_removed_are_forgotten(
    redis_stage: RedisStage, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(3):
        redis_stage.put(redis_stage.queue, b"%d" % n)
    first, second, _ = redis_stage.reader().read(limit=3, wait=0)
    redis_stage.client.xdel(redis_stage.queue, first.bookmark, second.bookmark)

    with caplog.at_level(logging.WARNING):
        letters = redis_stage.reader().read(limit=2, wait=0)

    pending = redis_stage.client.xpending(redis_stage.queue, "poisonweb")["pending"]
    assert [letter.body for letter in letters] == [b"2"]
    assert "2 dead letters" in caplog.text
    assert pending == 1


def test_large_dead_letters_behind_small_ones_come_few_at_a_time(
    redis_stage: RedisStage,
) -> None:
    for _ in range(200):
        redis_stage.put(redis_stage.queue, b"small")
    for _ in range(16):
        redis_stage.put(redis_stage.queue, b"x" * 20_000_000)

    first_time = batches(redis_stage.reader())
    after_a_crash = batches(redis_stage.reader())

    assert sum(map(len, first_time)) == sum(map(len, after_a_crash)) == 216
    assert max(map(sum, after_a_crash)) < BATCH_BYTES + 20_000_000
    assert max(map(sum, first_time)) < BATCH_BYTES + 16 * 20_000_000


def test_a_consumer_that_takes_the_message_first_keeps_it(
    redis_stage: RedisStage,
) -> None:
    bookmark = exhausted(redis_stage)
    reader = redis_reader(redis_stage)
    (pending,) = reader._dead_lettering._used_up(b"billing")
    redis_stage.receive_again(
        bookmark, consumer_group="billing", client_name="billing-2"
    )

    moved = reader._dead_lettering._dead_letter(pending, now=NOON)

    (entry,) = redis_stage.client.xpending_range(
        redis_stage.topic, "billing", "-", "+", 10
    )
    assert not moved
    assert entry["consumer"] == b"billing-2"
    assert redis_stage.contents(redis_stage.queue) == []


def test_dead_lettering_goes_on_where_it_was_killed(redis_stage: RedisStage) -> None:
    bookmark = exhausted(redis_stage)
    redis_stage.raw(
        *("XCLAIM", redis_stage.topic, "billing", "poisonweb", 0, bookmark, "JUSTID")
    )
    reader = redis_stage.reader()

    too_early = reader.dead_letter_exhausted()
    redis_stage.advance(VISIBILITY_TIMEOUT)
    in_time = reader.dead_letter_exhausted()

    ((_, headers),) = redis_stage.contents(redis_stage.queue)
    story = vocabulary.read(headers)
    assert (too_early, in_time) == (0, 1)
    assert (story.original_bookmark, story.client_name) == (bookmark, "")
    assert redis_stage.admin().consumers()[0].clients == 1
    assert story.attempts == MAX_DEQUEUE_COUNT


def test_a_queue_that_takes_nothing_more_loses_no_message(
    redis_stage: RedisStage, caplog: pytest.LogCaptureFixture
) -> None:
    bookmark = exhausted(redis_stage)
    redis_stage.client.xadd(redis_stage.queue, {"body": "last"}, id=LAST_ID)

    with caplog.at_level(logging.WARNING):
        moved = redis_stage.reader().dead_letter_exhausted()

    (entry,) = redis_stage.client.xpending_range(
        redis_stage.topic, "billing", "-", "+", 10
    )
    assert moved == 0
    assert "not dead-lettered" in caplog.text
    assert entry["message_id"] == bookmark.encode()
    assert (entry["consumer"], entry["times_delivered"]) == (
        b"billing-1",
        MAX_DEQUEUE_COUNT,
    )


def test_a_message_trimmed_from_the_stream_is_settled_with_a_warning(
    redis_stage: RedisStage, caplog: pytest.LogCaptureFixture
) -> None:
    bookmark = exhausted(redis_stage)
    redis_stage.client.xtrim(redis_stage.topic, maxlen=0, approximate=False)

    with caplog.at_level(logging.WARNING):
        moved = redis_stage.reader().dead_letter_exhausted()

    assert moved == 0
    assert redis_stage.client.xpending(redis_stage.topic, "billing")["pending"] == 0
    assert bookmark in caplog.text


@pytest.mark.parametrize("seed", range(40))
def test_a_message_is_pending_or_dead_lettered_and_never_both(
    redis_stage: RedisStage, seed: int
) -> None:
    exhausted(redis_stage)
    cut = random.Random(seed).randrange(1_400)
    cuts = {"after_requests": 200 + cut} if seed % 2 else {"after_replies": cut}

    with cutting(port_of(redis_stage), **cuts) as port:
        address, redis_stage.url = redis_stage.url, with_port(redis_stage.url, port)
        moved = dead_letter_over_a_bad_link(redis_stage)
    redis_stage.url = address

    pending = redis_stage.client.xpending(redis_stage.topic, "billing")["pending"]
    queued = len(redis_stage.contents(redis_stage.queue))
    assert pending + queued == 1
    assert moved <= queued


def test_many_overdue_messages_are_looked_at_page_by_page(
    redis_stage: RedisStage,
) -> None:
    for n in range(1_500):
        redis_stage.put(redis_stage.topic, b"%d" % n)
    *_, last = redis_stage.receive(consumer_group="billing", client_name="billing-1")
    for _ in range(MAX_DEQUEUE_COUNT - 1):
        redis_stage.receive_again(
            last, consumer_group="billing", client_name="billing-1"
        )
    redis_stage.advance(VISIBILITY_TIMEOUT)
    reader = redis_stage.reader()

    moved = [reader.dead_letter_exhausted() for _ in range(3)]

    assert moved == [0, 1, 0]


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("redis://:s3cret@127.0.0.1:{port}/0", Unavailable),
        ("redis://anna:s3cret@127.0.0.1:1/0", Unavailable),
        ("redis://:s3cret@" + "a" * 300 + ".test/0", Unavailable),
        ("redis://:s3cret@a..b/0", Unavailable),
        ("redis://:s3cret@127.0.0.1:s3cret/0", Invalid),
        ("redis://:s3cret@127.0.0.1:1/s3cret", Invalid),
        ("redis://:s3cret@127.0.0.1:1/0?decode_responses=s3cret", Invalid),
        ("redis://:s3cret#@127.0.0.1:1/0", Invalid),
        ("redis://:s3cret@[127.0.0.1/0", Invalid),
        ("amqp://:s3cret@127.0.0.1:1/0", Invalid),
        ("unix:///tmp/s3cret", Invalid),
    ],
)
def test_errors_never_hold_the_password(
    redis_stage: RedisStage, address: str, error: type[Exception]
) -> None:
    redis_stage.url = address.format(port=port_of(redis_stage))

    with pytest.raises(error) as raised:
        redis_stage.publisher().publish([outbound("orders", 0)])

    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in repr(RedisSettings(url=redis_stage.url))
    assert raised.value.__cause__ is None or "s3cret" not in str(raised.value.__cause__)


def test_an_address_may_come_from_the_environment(
    redis_stage: RedisStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_ORDERS_REDIS", redis_stage.url)
    there, nowhere = (
        Broker(kind="redis_streams", url=url)
        for url in ("env:BROKER_ORDERS_REDIS", "env:BROKER_NOT_SET")
    )

    assert brokers.broker_admin_of(there).ping().startswith("Redis ")
    with pytest.raises(Unavailable, match="BROKER_NOT_SET"):
        brokers.broker_admin_of(nowhere)


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    url = "redis://127.0.0.1:1"

    with pytest.raises(Invalid, match="dead_letter_queue"):
        RedisSettings(url=url, topic="orders-poison")
    with pytest.raises(Invalid, match="dead_letter_queue"):
        RedisSettings(url=url, topic="orders", dead_letter_queue="orders")
    with pytest.raises(Invalid, match="body_fild"):
        RedisSettings.from_options({"body_fild": "x"}, url=url)
    with pytest.raises(Invalid, match="body_field"):
        RedisSettings.from_options({"body_field": ""}, url=url)
    with pytest.raises(Invalid, match="body_field"):
        RedisSettings.from_options({"body_field": 7}, url=url)
    with pytest.raises(Invalid, match="kafka"):
        adapters.adapter("kafka")


def port_of(stage: RedisStage) -> int:
    return urlsplit(stage.server.url).port or 0


def with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f":{parts.password}@127.0.0.1:{port}").geturl()


def publish_until_away(stage: RedisStage) -> list[PublishOutcome]:
    publisher, outcomes = stage.publisher(), list[PublishOutcome]()
    while True:
        try:
            outcomes += publisher.publish([outbound(stage.topic, n) for n in range(50)])
        except Unavailable:
            return outcomes


def kill_at_length(stage: RedisStage, seed: int) -> None:
    length = random.Random(seed).randrange(1, 1_500)
    while stage.client.xlen(stage.topic) < length:
        pass
    stage.server.kill()


def redis_reader(stage: RedisStage) -> RedisDeadLetterReader:
    reader = stage.reader()
    assert isinstance(reader, RedisDeadLetterReader)
    return reader


def batches(reader: object) -> list[list[int]]:
    assert isinstance(reader, RedisDeadLetterReader)
    sizes = []
    while batch := reader.read(limit=500, wait=0):
        sizes.append([letter.size for letter in batch])
    return sizes


def exhausted(stage: RedisStage) -> str:
    """Put a message that was handed out once too often and never settled."""
    stage.put(stage.topic, b"body", ((b"tag", b"a"), (b"tag", b"b")))
    (bookmark,) = stage.receive(consumer_group="billing", client_name="billing-1")
    for _ in range(MAX_DEQUEUE_COUNT - 1):
        stage.receive_again(bookmark, consumer_group="billing", client_name="billing-1")
    stage.advance(VISIBILITY_TIMEOUT)
    return bookmark


def dead_letter_over_a_bad_link(stage: RedisStage) -> int:
    try:
        return stage.reader().dead_letter_exhausted()
    except Unavailable:
        return 0
