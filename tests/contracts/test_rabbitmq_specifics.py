"""What only RabbitMQ does."""

from __future__ import annotations

import os
import random
import signal
import struct
from collections import Counter
from dataclasses import replace
from typing import cast
from urllib.parse import urlsplit

import pytest
from pika import spec

from apps.brokers import failure_headers
from apps.brokers.adapter_contract import (
    DeadLetter,
    FoundTopic,
    Header,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.adapters.rabbitmq import publisher as rabbitmq_publisher
from apps.brokers.adapters.rabbitmq import reader as rabbitmq_reader
from apps.brokers.adapters.rabbitmq.adapter import ADAPTER
from apps.brokers.adapters.rabbitmq.amqp_connection import LARGEST_FRAME
from apps.brokers.adapters.rabbitmq.publisher import (
    IN_FLIGHT,
    RabbitPublisher,
    pack,
)
from apps.brokers.adapters.rabbitmq.reader import (
    LONGEST_HELD_SECONDS,
    RabbitConsumption,
    RabbitDeadLetterReader,
)
from apps.brokers.adapters.rabbitmq.transport import RabbitLink
from apps.brokers.errors import QueueMissing
from apps.core.errors import Refused, Unavailable
from poisonguard.contract import Cause
from tests.contracts.conftest import StageOf
from tests.contracts.cutting_and_counting_proxies import cutting
from tests.contracts.rabbitmq_topic_fixture import RabbitStage, receive_all
from tests.contracts.topic_fixture_interface import outbound
from tests.waiting import wait_until

SENT, REFUSED, UNKNOWN = OutcomeKind.SENT, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN
PATIENCE = 60.0
CUTS = 500 if os.environ.get("SOAK") else 20
# Erlang cannot represent this number: the broker fails, and closes the connection.
HOSTILE: Header = (b"weight", b'{"$raw": "ZH/4AAAAAAAB"}')

pytestmark = pytest.mark.needs("rabbitmq")


@pytest.fixture
def stage(stage_of: StageOf) -> RabbitStage:
    return cast("RabbitStage", stage_of("rabbitmq"))


def test_a_message_that_kills_its_consumer_becomes_a_dead_letter(
    stage: RabbitStage,
) -> None:
    queue = quorum(stage, limit=3)
    stage.put(queue, b"deadly", ((b"amqp.message_id", b"m-1"), (b"tenant", b"a")))
    deliveries = [until_there(stage, queue) for _ in range(4)]

    (letter,) = read_all(stage, 1)

    story = failure_headers.read(letter.headers)
    assert deliveries == [[b"deadly"]] * 4
    assert (letter.body, letter.dequeue_count) == (b"deadly", 4)
    assert story.cause is Cause.MAX_DEQUEUE_COUNT
    assert story.origin == queue
    assert letter.enqueued_at == story.failed_at
    assert letter.bookmark.startswith("m-1/")
    assert (b"tenant", b"a") in letter.headers


def test_the_dequeue_count_is_none_where_rabbitmq_does_not_know_it(
    stage: RabbitStage,
) -> None:
    queue = quorum(stage, limit=1)
    stage.put(queue, b"deadly")
    for _ in range(2):
        until_there(stage, queue)
    stage.options = {"management_url": "http://127.0.0.1:1"}

    (letter,) = read_all(stage, 1)

    assert (letter.body, letter.dequeue_count) == (b"deadly", None)
    assert failure_headers.read(letter.headers).cause is Cause.MAX_DEQUEUE_COUNT


def test_each_death_of_a_message_has_its_own_bookmark(stage: RabbitStage) -> None:
    queue = quorum(stage, limit=100)
    for body in (b"1", b"2"):
        stage.put(queue, body, ((b"amqp.message_id", b"same"),))
    reject_all(stage, queue)

    reader = stage.reader()
    # A queue dead-letters when it gets to it, maybe not both at once.
    before = [
        letter for _ in range(2) for letter in reader.read(limit=1, wait=PATIENCE)
    ]
    reader.close()
    again = read_all(stage, 2)

    assert [letter.redelivered for letter in (*before, *again)] == [False] * 2 + [
        True
    ] * 2
    assert [letter.bookmark for letter in before] == [b.bookmark for b in again]
    assert {letter.dequeue_count for letter in before} == {1}


def test_every_type_of_header_goes_through_the_broker(stage: RabbitStage) -> None:
    headers: tuple[Header, ...] = (
        (b"amqp.content_type", b"application/json"),
        (b"amqp.priority", b"3"),
        (b"amqp.correlation_id", b"\xff\0"),
        (b"amqp.reply_to", b"answers"),
        (b"amqp.message_id", b"m-1"),
        (b"amqp.timestamp", b"1700000000"),
        (b"amqp.type", b"placed"),
        (b"amqp.app_id", b"shop"),
        (b"S", b"text"),
        (b"b", b'{"$b": -1}'),
        (b"B", b'{"$B": 255}'),
        (b"s", b'{"$s": -1}'),
        (b"u", b'{"$u": 65535}'),
        (b"I", b'{"$I": 5}'),
        (b"i", b'{"$i": 4294967295}'),
        (b"l", b'{"$l": -9223372036854775808}'),
        (b"f", b'{"$f": 0.5}'),
        (b"d", b'{"$d": 0.1}'),
        (b"D", b'{"$D": [2, 314]}'),
        (b"T", b'{"$T": 1700000000}'),
        (b"x", b'{"$x": "/wA="}'),
        (b"t", b'{"$t": true}'),
        (b"V", b'{"$V": null}'),
        (b"A", b'[1, "a", {"k": [null, true]}, {"$I": 7}]'),
        (b"F", b'{"k": {"n": {"$d": 1.5}}}'),
    )
    stage.put(stage.queue, b"body", headers)

    (letter,) = read_all(stage, 1)

    with stage.channel() as channel:
        _, got, _ = channel.basic_get(stage.queue)
    assert letter.headers == headers
    assert (got.headers["I"], got.headers["V"], got.headers["S"]) == (
        5,
        None,
        "text",
    )
    assert (got.message_id, got.priority, got.delivery_mode) == ("m-1", 3, 2)


def test_the_delivery_count_of_a_quorum_queue_is_no_header_of_the_message(
    stage: RabbitStage,
) -> None:
    queue = quorum(stage, limit=100)
    headers = ((b"z", b"1"), (b"a", b"2"), (b"a", b"3"))
    stage.put(queue, b"body", headers)
    settings = replace(stage.settings, dead_letter_queue=queue)
    reader = ADAPTER.dead_letter_reader(stage.broker, settings)

    (letter,) = reader.read(limit=1, wait=PATIENCE)
    reader.close()

    assert sorted(letter.headers) == sorted(headers)


def test_headers_that_steer_the_broker_are_not_sent(stage: RabbitStage) -> None:
    victim = f"victim {stage.topic}"
    stage.declare(victim, "classic")
    steering: tuple[Header, ...] = (
        (b"amqp.expiration", b"0"),
        (b"amqp.user_id", b"anna"),
        (b"CC", b'["%s"]' % victim.encode()),
        (b"BCC", b'["%s"]' % victim.encode()),
    )

    (outcome,) = stage.publisher().publish(
        [Outbound(topic=stage.topic, body=b"body", headers=steering)]
    )

    assert outcome.kind is SENT
    assert stage.contents(stage.topic) == [(b"body", ())]
    assert stage.contents(victim) == []


def test_a_full_queue_refuses_what_it_does_not_take(stage: RabbitStage) -> None:
    full = f"full {stage.topic}"
    stage.declare(full, "classic", {"x-max-length": 3, "x-overflow": "reject-publish"})

    outcomes = stage.publisher().publish([outbound(full, n) for n in range(50)])

    confirmed = [n for n, outcome in enumerate(outcomes) if outcome.kind is SENT]
    refusals = {outcome.detail for outcome in outcomes if outcome.kind is REFUSED}
    there = Counter(int(body) for body, _ in stage.contents(full))
    assert there == Counter(confirmed)
    assert len(confirmed) < 50
    assert refusals == {
        "RabbitMQ did not take it (nack): its queue is full, as a rule, or unavailable."
    }


def test_a_queue_deleted_between_windows_is_named(
    stage: RabbitStage,
) -> None:
    queue = f"going  {stage.topic}"
    stage.declare(queue, "classic")
    publisher = stage.publisher()
    first = publisher.publish([outbound(queue, 0)])
    with stage.channel() as channel:
        channel.queue_delete(queue)

    window = [outbound(queue if n % 2 else stage.topic, n) for n in range(100)]
    outcomes = publisher.publish(window)

    assert [outcome.kind for outcome in first] == [SENT]
    assert [outcome.kind for outcome in outcomes] == [SENT, REFUSED] * 50
    assert queue in outcomes[1].detail
    assert len(stage.contents(stage.topic)) == 50


def test_equal_messages_are_counted_as_often_as_they_arrive(stage: RabbitStage) -> None:
    nowhere = f"nowhere {stage.topic}"
    window = [
        Outbound(topic=nowhere if n % 3 else stage.topic, body=b"same", headers=())
        for n in range(99)
    ]

    kinds = [outcome.kind for outcome in stage.publisher().publish(window)]

    assert kinds == [SENT, REFUSED, REFUSED] * 33
    assert len(stage.contents(stage.topic)) == 33


def test_one_in_a_hundred_that_breaks_the_connection_is_refused_alone(
    stage: RabbitStage,
) -> None:
    window = [outbound(stage.topic, n) for n in range(1_000)]
    for n in range(50, 1_000, 100):
        window[n] = replace(window[n], headers=(HOSTILE,))

    outcomes = stage.publisher().publish(window)

    there = Counter(int(body) for body, _ in stage.contents(stage.topic))
    hostile = set(range(50, 1_000, 100))
    assert {n for n, o in enumerate(outcomes) if o.kind is REFUSED} == hostile
    assert {n for n, o in enumerate(outcomes) if o.kind is SENT} == set(there)
    assert all("INTERNAL_ERROR" in outcomes[n].detail for n in hostile)
    assert sum(there.values()) - 990 <= IN_FLIGHT
    assert max(there.values()) <= 2


def test_one_in_a_hundred_that_breaks_the_channel_is_refused_in_the_brokers_words(
    stage: RabbitStage,
) -> None:
    publisher = stage.publisher()
    assert isinstance(publisher, RabbitPublisher)
    parcels = [
        pack(n, outbound(stage.topic, n), largest=LARGEST_FRAME) for n in range(1_000)
    ]
    # Our own encoder never writes a user id, so it is written here.
    foreign = struct.pack(">H", 1 << 4) + b"\4anna"
    for n in range(50, 1_000, 100):
        parcels[n] = replace(parcels[n], properties=foreign)
    outcomes: dict[int, PublishOutcome] = {}

    lost = publisher._deliver(parcels, outcomes)

    there = Counter(int(body) for body, _ in stage.contents(stage.topic))
    hostile = set(range(50, 1_000, 100))
    assert lost == ""
    assert {n for n in range(1_000) if outcomes[n].kind is REFUSED} == hostile
    assert set(there) == set(range(1_000)) - hostile
    assert all("user_id" in outcomes[n].detail for n in hostile)
    assert sum(there.values()) - 990 <= IN_FLIGHT


def test_what_was_confirmed_before_a_break_is_not_sent_again(
    stage: RabbitStage,
) -> None:
    window = [outbound(stage.topic, n) for n in range(3 * IN_FLIGHT)]
    window.append(replace(window[-1], headers=(HOSTILE,)))

    *others, last = stage.publisher().publish(window)

    there = Counter(int(body) for body, _ in stage.contents(stage.topic))
    assert ({outcome.kind for outcome in others}, last.kind) == ({SENT}, REFUSED)
    assert set(there) == set(range(3 * IN_FLIGHT))
    assert sum(there.values()) - len(there) <= IN_FLIGHT


def test_headers_that_fill_more_than_a_frame_are_refused_before(
    stage: RabbitStage,
) -> None:
    large = ((b"large", b"x" * 200_000),)
    window = [
        outbound(stage.topic, 0),
        Outbound(topic=stage.topic, body=b"", headers=large),
        Outbound(topic="q" * 256, body=b"", headers=()),
        outbound(stage.topic, 3),
    ]

    outcomes = stage.publisher().publish(window)

    assert [outcome.kind for outcome in outcomes] == [SENT, REFUSED, REFUSED, SENT]
    assert "131,05" in outcomes[1].detail
    assert "255 bytes" in outcomes[2].detail


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_message_is_never_sent_when_the_cut_link_lost_it(
    stage: RabbitStage, seed: int
) -> None:
    cut = random.Random(seed).randrange(400, 12_000)
    cuts = {"after_requests": cut} if seed % 2 else {"after_replies": cut // 10}
    port = urlsplit(stage.url).port or 0
    window = [outbound(stage.topic, n) for n in range(100)]

    with cutting(port, **cuts) as proxy:
        address, stage.url = stage.url, stage.url.replace(str(port), str(proxy))
        outcomes = publish_over_a_bad_link(stage, window)
    stage.url = address

    there = Counter(int(body) for body, _ in stage.contents(stage.topic))
    unsent = {n for n, o in enumerate(outcomes) if o.kind is OutcomeKind.UNSENT}
    assert {outcome.kind for outcome in outcomes} <= {SENT, UNKNOWN, OutcomeKind.UNSENT}
    assert {n for n, o in enumerate(outcomes) if o.kind is SENT} <= set(there)
    assert unsent.isdisjoint(there)
    assert set(there.values()) <= {1}


def test_a_message_not_written_to_a_hanging_link_is_unsent(
    stage: RabbitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = stage.publisher()
    # With the usual timeout, since a confirmation is slow on a busy machine.
    assert [one.kind for one in publisher.publish([outbound(stage.topic, 0)])] == [SENT]
    monkeypatch.setattr(rabbitmq_publisher, "CONFIRM_SECONDS", 0.5)
    # A connection that had rested would be probed first.
    monkeypatch.setattr(rabbitmq_publisher, "RESTED_SECONDS", PATIENCE)
    window = [outbound(stage.topic, n) for n in range(1, 3 * IN_FLIGHT)]

    stage.server.process.send_signal(signal.SIGSTOP)
    try:
        outcomes = publisher.publish(window)
    finally:
        stage.server.process.send_signal(signal.SIGCONT)

    kinds = Counter(outcome.kind for outcome in outcomes)
    assert kinds == {
        UNKNOWN: IN_FLIGHT,
        OutcomeKind.UNSENT: len(window) - IN_FLIGHT,
    }
    unsent = {
        o.body
        for o, one in zip(window, outcomes, strict=True)
        if one.kind is OutcomeKind.UNSENT
    }
    assert unsent.isdisjoint(body for body, _ in stage.contents(stage.topic))


def test_publishing_during_an_alarm_is_unavailable_and_sends_nothing(
    stage: RabbitStage,
) -> None:
    resting, unused = stage.publisher(), stage.publisher()
    resting.publish([outbound(stage.topic, 0)])
    stage.server.ctl("set_vm_memory_high_watermark", "0")
    try:
        (unknown,) = resting.publish([outbound(stage.topic, 1)])
    except Unavailable:
        # It was idle for long enough to be probed first.
        unknown = PublishOutcome(kind=UNKNOWN)
    try:
        with pytest.raises(Unavailable, match="memory"):
            unused.publish([outbound(stage.topic, 2)])
        with pytest.raises(Unavailable, match="memory"):
            resting.publish([outbound(stage.topic, 3)])
    finally:
        stage.server.ctl("set_vm_memory_high_watermark", "0.6")

    (confirmed,) = unused.publish([outbound(stage.topic, 4)])

    there = {body for body, _ in stage.contents(stage.topic)}
    assert (unknown.kind, confirmed.kind) == (UNKNOWN, SENT)
    assert {b"0", b"4"} <= there <= {b"0", b"1", b"4"}


@pytest.mark.parametrize("seed", range(5))
def test_a_drain_that_dies_at_any_moment_loses_nothing(
    stage: RabbitStage, seed: int
) -> None:
    chance = random.Random(seed)
    for n in range(200):
        stage.put(stage.queue, b"%d" % n)
    drained = Counter[bytes]()

    while set(drained) != {b"%d" % n for n in range(200)}:
        reader = stage.reader()
        assert isinstance(reader, RabbitDeadLetterReader)
        for _ in range(chance.randrange(4)):
            letters = reader.read(limit=chance.randrange(1, 40), wait=1)
            drained.update(letter.body for letter in letters)
            chosen = [one for one in letters if chance.random() < 0.9]
            reader.acknowledge([letter.handle for letter in chosen])
        die(reader)

    rest = [body for body, _ in stage.contents(stage.queue)]
    assert len(rest) == len(set(rest)) < 200
    assert max(drained.values()) > 1


def test_nothing_is_consumed_before_the_first_read(stage: RabbitStage) -> None:
    stage.put(stage.queue, b"0")
    reader = stage.reader()

    looked = reader.peek(limit=10)
    before = consumers_of(stage, stage.queue)
    reader.read(limit=1, wait=1)
    after = consumers_of(stage, stage.queue)

    assert (looked, before, after) == ([], 0, 1)


def test_a_reader_is_handed_no_more_than_it_can_hold(stage: RabbitStage) -> None:
    for n in range(40):
        stage.put(stage.queue, b"%d" % n)
    reader = stage.reader()

    reader.read(limit=5, wait=1)
    waiting = stage.admin().depth()
    rest = reader.read(limit=100, wait=1)

    assert waiting == 35
    assert [letter.body for letter in rest] == [b"%d" % n for n in range(5, 40)]


def test_a_reader_is_handed_no_more_bytes_ahead_than_a_batch_may_have(
    stage: RabbitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_reader, "BATCH_BYTES", 64_000)
    for _ in range(40):
        stage.put(stage.queue, b"x" * 20_000)
    reader = stage.reader()

    first = len(reader.read(limit=1, wait=1))
    batch = len(reader.read(limit=100, wait=1))
    waiting = stage.admin().depth() or 0

    ahead = 40 - first - batch - waiting
    assert (first, batch <= 4, ahead * 20_000 <= 64_000) == (1, True, True)


def test_a_missing_queue_is_named(stage: RabbitStage) -> None:
    with stage.channel() as channel:
        channel.queue_delete(stage.queue)

    with pytest.raises(QueueMissing, match="no queue") as read:
        stage.reader().read(limit=1, wait=0)
    with pytest.raises(QueueMissing, match="no queue") as counted:
        stage.admin().depth()

    assert all(stage.queue in str(error.value) for error in (read, counted))


def test_a_queue_deleted_while_it_is_read_is_reported(stage: RabbitStage) -> None:
    reader = stage.reader()
    reader.read(limit=1, wait=0)
    with stage.channel() as channel:
        channel.queue_delete(stage.queue)

    with pytest.raises((Unavailable, Refused)):
        for _ in range(3):
            reader.read(limit=1, wait=1)


def test_what_was_read_on_a_connection_that_is_gone_is_not_acknowledged(
    stage: RabbitStage,
) -> None:
    stage.put(stage.queue, b"0")
    reader = stage.reader()
    assert isinstance(reader, RabbitDeadLetterReader)
    (letter,) = reader.read(limit=1, wait=1)
    die(reader)

    with pytest.raises(Unavailable):
        reader.acknowledge([letter.handle])
    reader.release([letter.handle])
    (again,) = reader.read(limit=1, wait=PATIENCE)

    assert (again.body, again.redelivered) == (b"0", True)
    assert again.handle != letter.handle


def test_a_message_held_too_long_is_returned_before_rabbitmqs_limit(
    stage: RabbitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.put(stage.queue, b"0")
    reader = stage.reader()
    reader.read(limit=1, wait=1)
    monkeypatch.setattr(
        RabbitConsumption,
        "oldest_unsettled_seconds",
        property(lambda _: LONGEST_HELD_SECONDS + 1),
    )
    with pytest.raises(Unavailable, match="half an hour"):
        reader.read(limit=1, wait=0)
    monkeypatch.undo()

    (again,) = reader.read(limit=1, wait=PATIENCE)

    assert (again.body, again.redelivered) == (b"0", True)


def test_ping_names_tls_and_refuses_an_unknown_certificate(
    stage: RabbitStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.url = stage.server.tls_url
    with pytest.raises(Unavailable, match="certificate"):
        stage.broker_admin().ping()
    monkeypatch.setenv("SSL_CERT_FILE", str(stage.server.certificate))

    description = stage.broker_admin().ping()
    (outcome,) = stage.publisher().publish(
        [Outbound(topic=stage.topic, body=b"x" * 3_000_000, headers=())]
    )

    assert description.startswith("RabbitMQ 3.")
    assert description.endswith("over TLSv1.3")
    assert outcome.kind is SENT


def test_ping_tries_the_management_plugin_where_its_url_is_set(
    stage: RabbitStage,
) -> None:
    url = stage.server.management_url
    tried = stage.broker_admin().ping()
    stage.options = {"management_url": "http://127.0.0.1:1"}
    with pytest.raises(Refused, match=r"^RabbitMQ 3\..* does not answer") as absent:
        stage.broker_admin().ping()
    stage.options = {}
    untold = stage.broker_admin().ping()

    assert f"with its management at {url}, virtual host /" in tried
    assert "http://127.0.0.1:1" in str(absent.value)
    assert "no management_url is set" in untold


@pytest.mark.parametrize(
    ("user", "message"),
    [("guest:wrong", "refused the login"), ("plain:plain", "the tag monitoring")],
)
def test_a_wrong_login_and_a_missing_right_have_different_errors(
    stage: RabbitStage, user: str, message: str
) -> None:
    stage.server.manage("PUT", "users", "plain", password="plain", tags="")
    stage.url = stage.url.replace("guest:guest", user)

    with pytest.raises(Refused, match=message) as refused:
        stage.broker_admin().discover()

    assert "plugin" not in str(refused.value)
    assert stage.server.management_url in str(refused.value)


def test_the_error_without_the_management_plugin_says_how_to_enable_it(
    stage: RabbitStage,
) -> None:
    stage.put(stage.queue, b"0")
    stage.options = {"management_url": "http://127.0.0.1:1"}

    with pytest.raises(Unavailable, match="rabbitmq-plugins enable"):
        stage.broker_admin().discover()

    (position,) = stage.admin().consumers()
    assert stage.admin().delivered() is None
    assert stage.admin().depth() == 1
    assert (position.lag, position.clients) == (0, 0)


@pytest.mark.parametrize(
    "address",
    [
        "amqp://guest:s3cret@127.0.0.1:{port}/",
        "amqp://guest:s3cret@127.0.0.1:1/",
        "amqp://guest:s3cret@127.0.0.1:{port}/no%20such",
        "amqp://guest:s3cret@a..b/",
    ],
)
def test_errors_never_hold_the_password(stage: RabbitStage, address: str) -> None:
    stage.url = address.format(port=urlsplit(stage.url).port)

    with pytest.raises(Unavailable) as error:
        stage.publisher().publish([outbound("orders", 0)])

    assert "s3cret" not in str(error.value)
    assert "s3cret" not in repr(error.value.__cause__)


def test_dead_letter_queues_are_found_through_policies_and_exchanges(
    stage: RabbitStage,
) -> None:
    mine = stage.topic
    with stage.channel() as channel:
        channel.exchange_declare(f"{mine} dlx", "topic")
        channel.queue_declare(f"{mine} by policy", durable=True)
        channel.queue_declare(f"{mine} its dead", durable=True)
        channel.queue_bind(f"{mine} its dead", f"{mine} dlx", "dead.#")
    stage.server.manage(
        *("PUT", "policies", "/", f"{mine} policy"),
        pattern=".* by policy$",
        definition={
            "dead-letter-exchange": f"{mine} dlx",
            "dead-letter-routing-key": "dead.orders",
        },
    )

    def with_their_policies() -> dict[str, FoundTopic]:
        found_topics = stage.broker_admin().discover()
        queues = {one.dead_letter_queue for one in found_topics}
        return {one.name: one for one in found_topics if f"{mine} its dead" in queues}

    # The management plugin shows a new policy with its next statistics.
    topics = wait_until(with_their_policies)

    by_policy = topics[f"{mine} by policy"]
    assert by_policy.dead_letter_queue == f"{mine} its dead"
    assert topics[mine].dead_letter_queue == stage.queue
    assert f"{mine} its dead" not in topics


def quorum(stage: RabbitStage, *, limit: int) -> str:
    """Declare a quorum queue whose dead letters go where the stage's do."""
    name = f"quorum {stage.topic}"
    stage.declare(
        name,
        "quorum",
        {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": stage.queue,
            "x-delivery-limit": limit,
        },
    )
    return name


def take_all(stage: RabbitStage, queue: str) -> list[bytes]:
    """Receive everything, settle nothing, and end: as a consumer that dies."""
    with stage.wire() as wire:
        return [arrival.body for arrival in receive_all(wire, queue)]


def until_there(stage: RabbitStage, queue: str) -> list[bytes]:
    """Receive until the messages of the last consumer are back."""
    return wait_until(lambda: take_all(stage, queue))


def reject_all(stage: RabbitStage, queue: str) -> None:
    with stage.wire() as wire:
        for arrival in list(receive_all(wire, queue)):
            tag = arrival.method.delivery_tag
            wire.send(spec.Basic.Nack(tag, requeue=False))


def read_all(stage: RabbitStage, count: int) -> list[DeadLetter]:
    reader, letters = stage.reader(), list[DeadLetter]()

    def have_come() -> bool:
        letters.extend(reader.read(limit=count, wait=0.5))
        return len(letters) >= count

    wait_until(have_come, seconds=PATIENCE, describe=lambda: letters)
    reader.close()
    return letters


def consumers_of(stage: RabbitStage, queue: str) -> int:
    with stage.channel() as channel:
        answer = channel.queue_declare(queue, passive=True).method
    return int(answer.consumer_count)


def die(reader: RabbitDeadLetterReader) -> None:
    """End its connection as the end of its process would."""
    if reader._consumption is not None:
        link: RabbitLink = reader._consumption._wire._link
        link.close()
        reader._consumption._wire.is_open = False
        reader._consumption = None


def publish_over_a_bad_link(
    stage: RabbitStage, window: list[Outbound]
) -> list[PublishOutcome]:
    publisher = stage.publisher()
    try:
        return publisher.publish(window)
    except Unavailable:
        return []
    finally:
        # Otherwise a long enough link would stay open.
        publisher.close()
