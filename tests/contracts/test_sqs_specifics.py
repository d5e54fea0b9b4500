"""What only SQS does: receipts, typed attributes, groups, batches of ten."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from apps.brokers import failure_headers
from apps.brokers.adapter_contract import (
    Counting,
    Durability,
    Header,
    Headers,
    Ordering,
    Outbound,
    OutcomeKind,
)
from apps.brokers.adapters.sqs.adapter import ADAPTER, CAPABILITIES
from apps.brokers.adapters.sqs.publisher import SqsPublisher
from apps.brokers.adapters.sqs.sqs_calls import SqsAddress
from apps.brokers.errors import QueueMissing
from apps.core.errors import Refused, Unavailable
from poisonguard.contract import Cause
from tests.brokers.moto import MotoServer
from tests.contracts.broker_kinds import BrokerServer
from tests.contracts.cutting_and_counting_proxies import cutting
from tests.contracts.sqs_topic_fixture import SqsStage
from tests.contracts.topic_fixture_interface import MAX_DEQUEUE_COUNT

SENT, REFUSED, UNKNOWN = OutcomeKind.SENT, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN
UNSENT = OutcomeKind.UNSENT
EVERY_BYTE = bytes(range(256))
MEBIBYTE = 2**20


@pytest.fixture
def server(servers: Callable[[str], BrokerServer]) -> Iterator[MotoServer]:
    server = cast("MotoServer", servers("sqs"))
    yield server
    server.start()


@pytest.fixture
def stage(server: MotoServer) -> Iterator[SqsStage]:
    stage = SqsStage(server)
    yield stage
    stage.remove()


@pytest.fixture
def fifo(server: MotoServer) -> Iterator[SqsStage]:
    fifo = SqsStage(server, fifo=True)
    yield fifo
    fifo.remove()


def test_attributes_of_every_type_go_out_as_they_came(stage: SqsStage) -> None:
    attributes: dict[str, Any] = {
        "zeta": {"DataType": "String", "StringValue": "ü\t\r\n€😀"},
        "alpha": {"DataType": "Number", "StringValue": "1.50"},
        "label": {"DataType": "Number.int", "StringValue": "007"},
        "bytes": {"DataType": "Binary", "BinaryValue": EVERY_BYTE},
        "gzip": {"DataType": "Binary.gzip", "BinaryValue": b"\x1f\x8b"},
        "text": {"DataType": "String.json", "StringValue": "{}"},
    }
    stage.send(stage.queue, "ü\r\n😀", MessageAttributes=attributes)
    (letter,) = stage.reader().read(limit=1, wait=0)

    stage.publisher().publish([outbound(stage.topic, letter.body, letter.headers)])

    assert letter.body == "ü\r\n😀".encode()
    assert dict(letter.headers)[b"alpha"] == b"1.50"
    assert dict(letter.headers)[b"bytes"] == EVERY_BYTE
    (came,), (went,) = stage.server.look(stage.queue), stage.server.look(stage.topic)
    assert (went.body, went.attributes) == (came.body, came.attributes)


def test_a_binary_body_is_sent_in_base64_and_read_back(stage: SqsStage) -> None:
    bodies = [EVERY_BYTE, b"\0", b"a\xff", "\ufffe".encode()]

    outcomes = stage.publisher().publish([outbound(stage.queue, b) for b in bodies])
    letters = stage.reader().read(limit=10, wait=0)
    stage.publisher().publish([outbound(stage.topic, one.body) for one in letters])

    assert [one.kind for one in outcomes] == [SENT] * 4
    assert [(one.body, one.headers) for one in letters] == [(b, ()) for b in bodies]
    came, went = stage.server.look(stage.queue), stage.server.look(stage.topic)
    assert came[1].body == "AA=="
    assert came[1].attributes == {"x-poisonweb-body": ("String", b"base64")}
    assert [(m.body, m.attributes) for m in went] == [
        (m.body, m.attributes) for m in came
    ]


def test_text_marked_as_base64_that_is_not_ours_stays_as_it_is(stage: SqsStage) -> None:
    mark = ((b"x-poisonweb-body", b"base64"),)
    # Decoded it would be text, which we never encode.
    stage.put(stage.queue, b"dGV4dA==", mark)
    stage.put(stage.queue, b"AA", mark)

    letters = stage.reader().read(limit=2, wait=0)

    contents = [(letter.body, letter.headers) for letter in letters]
    assert contents == [(b"dGV4dA==", mark), (b"AA", mark)]


@pytest.mark.parametrize(("messages", "calls"), [(1, 1), (10, 1), (11, 2), (25, 3)])
def test_one_call_sends_ten_messages(
    stage: SqsStage, messages: int, calls: int
) -> None:
    window = [outbound(stage.topic, b"%d" % n) for n in range(messages)]
    before = stage.server.gate.calls["SendMessageBatch"]

    outcomes = stage.publisher().publish(window)

    assert stage.server.gate.calls["SendMessageBatch"] - before == calls
    assert {one.kind for one in outcomes} == {SENT}
    assert [body for body, _ in stage.contents(stage.topic)] == [
        one.body for one in window
    ]


def test_no_call_has_more_than_a_mebibyte(stage: SqsStage) -> None:
    window = [outbound(stage.topic, b"x" * 500_000) for _ in range(3)]
    before = stage.server.gate.calls["SendMessageBatch"]

    outcomes = stage.publisher().publish(window)

    assert stage.server.gate.calls["SendMessageBatch"] - before == 2
    assert [one.kind for one in outcomes] == [SENT] * 3


def test_the_largest_message_is_sent_and_one_byte_more_is_refused(
    stage: SqsStage,
) -> None:
    header = ((b"name", b"value"),)
    room = MEBIBYTE - len("name" + "String" + "value")
    fits, does_not = b"x" * room, b"x" * (room + 1)

    outcomes = stage.publisher().publish(
        [outbound(stage.topic, body, header) for body in (fits, does_not)]
    )

    assert [one.kind for one in outcomes] == [SENT, REFUSED]
    assert "1048576 bytes" in outcomes[1].detail
    assert [body for body, _ in stage.contents(stage.topic)] == [fits]


def test_what_sqs_would_not_keep_is_refused_before_it_is_sent(stage: SqsStage) -> None:
    ten: tuple[Header, ...] = tuple((b"h%d" % n, b"v") for n in range(10))
    cases: list[tuple[bytes, tuple[Header, ...], str]] = [
        (b"x", (*ten, (b"x-poisonweb-redrive", b"token")), "10 attributes, not 11"),
        (b"\0", ten, "10 attributes, not 11"),
        (b"", (), "empty body"),
        (b"x", ((b"name", b""),), "no empty attribute"),
        (b"x", ((b"name", b"\0"),), "no text"),
        (b"x", ((b"name", b"\xff"),), "no text"),
        (b"x", ((b"na me", b"v"),), "named"),
        (b"x", ((b"AWS.name", b"v"),), "named"),
        (b"x", ((b"a..b", b"v"),), "named"),
        (b"x", ((b"a" * 257, b"v"),), "named"),
        (b"x", ((b"a", b"v"), (b"a", b"w")), "once, not twice"),
        (b"x", ((b"sqs:types", b"[]"),), "no JSON"),
    ]
    window = [outbound(stage.topic, body, headers) for body, headers, _ in cases]

    *outcomes, last = stage.publisher().publish(
        [*window, outbound(stage.topic, b"ten", ten)]
    )

    assert [one.kind for one in outcomes] == [REFUSED] * len(cases)
    for outcome, (_, _, words) in zip(outcomes, cases, strict=True):
        assert words in outcome.detail
    assert last.kind is SENT
    assert stage.contents(stage.topic) == [(b"ten", ten)]


def test_one_hostile_message_keeps_no_other_from_being_sent(stage: SqsStage) -> None:
    url = stage.url_of(stage.topic)
    limit = {"MaximumMessageSize": "1024"}
    stage.client.set_queue_attributes(QueueUrl=url, Attributes=limit)
    window = [outbound(stage.topic, b"%d" % n) for n in range(7)]
    window[3] = outbound(stage.topic, b"x" * 2000)

    outcomes = stage.publisher().publish(window)

    kinds = [one.kind for one in outcomes]
    assert kinds == [SENT, SENT, SENT, REFUSED, SENT, SENT, SENT]
    assert "shorter than 1024 bytes" in outcomes[3].detail
    assert sorted(body for body, _ in stage.contents(stage.topic)) == [
        b"0", b"1", b"2", b"4", b"5", b"6",
    ]  # fmt: skip


def test_messages_to_a_missing_queue_are_refused_by_name(
    stage: SqsStage,
) -> None:
    publisher = stage.publisher()
    publisher.publish([outbound(stage.topic, b"before")])
    stage.client.delete_queue(QueueUrl=stage.url_of(stage.topic))

    outcomes = publisher.publish(
        [
            outbound(stage.topic, b"0"),
            outbound(stage.queue, b"1"),
            outbound("no such/queue", b"2"),
        ]
    )

    assert [one.kind for one in outcomes] == [REFUSED, SENT, REFUSED]
    assert stage.topic in outcomes[0].detail
    assert stage.contents(stage.queue) == [(b"1", ())]


def test_a_group_keeps_its_name_and_its_order(fifo: SqsStage) -> None:
    for n in range(12):
        group = f"customer-{n % 2}"
        fifo.send(
            fifo.queue, f"{n}", MessageGroupId=group, MessageDeduplicationId=f"{n}"
        )
    letters = drain(fifo)

    outcomes = fifo.publisher().publish(
        [
            outbound(fifo.topic, one.body, one.headers, dedupe=f"poisonweb-7-{n}")
            for n, one in enumerate(letters)
        ]
    )

    assert {one.kind for one in outcomes} == {SENT}
    messages = fifo.server.look(fifo.topic)
    assert {m.group for m in messages} == {"customer-0", "customer-1"}
    assert [m.dedupe for m in messages] == [f"poisonweb-7-{n}" for n in range(12)]
    for rest in (0, 1):
        bodies = [m.body for m in messages if m.group == f"customer-{rest}"]
        assert bodies == [f"{n}" for n in range(12) if n % 2 == rest]
    assert ADAPTER.ordering(fifo.topic) is Ordering.KEY


def test_the_key_is_the_group_of_a_message_without_one(fifo: SqsStage) -> None:
    window = [
        outbound(fifo.topic, b"0", dedupe="a", key="billing"),
        outbound(fifo.topic, b"1", dedupe="b", key="ü " * 100),
        outbound(fifo.topic, b"2", dedupe="c", key="ü " * 100),
        outbound(fifo.topic, b"3", dedupe="d"),
    ]

    outcomes = fifo.publisher().publish(window)

    groups = [message.group for message in fifo.server.look(fifo.topic)]
    assert {one.kind for one in outcomes} == {SENT}
    assert groups[0] == "billing"
    assert groups[1] == groups[2]
    assert len(set(groups)) == 3


def test_a_repeated_send_is_in_a_fifo_queue_once(fifo: SqsStage) -> None:
    once, again = (outbound(fifo.topic, b"x", dedupe="poisonweb-7-1") for _ in "ab")
    another = outbound(fifo.topic, b"x", dedupe="poisonweb-7-2")

    outcomes = fifo.publisher().publish([once, again, another])

    assert [one.kind for one in outcomes] == [SENT] * 3
    assert len(fifo.contents(fifo.topic)) == 2


def test_a_message_of_a_fair_queue_keeps_its_tenant(stage: SqsStage) -> None:
    stage.send(stage.queue, "x", MessageGroupId="tenant-1")
    (letter,) = stage.reader().read(limit=1, wait=0)

    stage.publisher().publish([outbound(stage.topic, letter.body, letter.headers)])

    (message,) = stage.server.look(stage.topic)
    assert (message.group, message.attributes, message.dedupe) == ("tenant-1", {}, None)


def test_sqs_dead_letters_by_itself_and_tells_the_count(stage: SqsStage) -> None:
    begun = datetime.now(UTC)
    stage.put(stage.topic, b"x")
    for _ in range(MAX_DEQUEUE_COUNT + 1):
        stage.fail(stage.topic)
    stage.put(stage.queue, b"put there")

    first, second = stage.reader().read(limit=2, wait=0)
    again = [stage.receive(stage.queue, VisibilityTimeout=0) for _ in "ab"]
    stage.publisher().publish([outbound(stage.queue, b"again", first.headers)])

    story = failure_headers.read(first.headers)
    assert (story.cause, story.origin) == (Cause.MAX_DEQUEUE_COUNT, stage.topic)
    assert stage.contents(stage.queue)[-1] == (b"again", ())
    assert (first.body, first.dequeue_count) == (b"x", MAX_DEQUEUE_COUNT)
    assert (second.body, second.dequeue_count) == (b"put there", None)
    assert first.enqueued_at is not None
    assert abs(first.enqueued_at - begun) < timedelta(minutes=1)
    assert stage.contents(stage.topic) == []
    assert stage.reader().dead_letter_exhausted() == 0
    assert again == [[], []]


def test_our_own_receives_are_not_counted_as_consumers(stage: SqsStage) -> None:
    stage.put(stage.topic, b"x")
    for _ in range(MAX_DEQUEUE_COUNT + 1):
        stage.fail(stage.topic)
    for _ in range(4):
        stage.fail(stage.queue)

    (letter,) = stage.reader().read(limit=2, wait=0)

    assert letter.dequeue_count == MAX_DEQUEUE_COUNT


def test_the_policy_names_the_dead_letter_queue(stage: SqsStage) -> None:
    stage.put(stage.queue, b"x")
    settings = stage.settings
    unnamed = type(settings)(topic=stage.topic)
    alone = type(settings)(topic=stage.queue)

    (letter,) = ADAPTER.dead_letter_reader(stage.broker, unnamed).read(limit=1, wait=0)

    assert (letter.queue, letter.body) == (stage.queue, b"x")
    with pytest.raises(Refused, match="no redrive policy"):
        ADAPTER.dead_letter_reader(stage.broker, alone).read(limit=1, wait=0)


def test_dead_letters_of_another_topic_are_left_to_it(
    stage: SqsStage, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    other = SqsStage(stage.server)
    request.addfinalizer(other.remove)
    policy = stage.client.get_queue_attributes(
        QueueUrl=stage.url_of(stage.topic), AttributeNames=["RedrivePolicy"]
    )["Attributes"]
    stage.client.set_queue_attributes(
        QueueUrl=stage.url_of(other.topic), Attributes=policy
    )
    stage.put(stage.topic, b"ours")
    stage.put(other.topic, b"theirs")
    for _ in range(MAX_DEQUEUE_COUNT + 1):
        stage.fail(stage.topic)
        stage.fail(other.topic)

    letters = stage.reader().read(limit=10, wait=0)

    assert [letter.body for letter in letters] == [b"ours"]
    assert other.topic in caplog.text
    assert len(stage.contents(stage.queue)) == 2


def test_a_held_message_is_returned_once_though_sqs_shows_it_again(
    stage: SqsStage,
) -> None:
    stage.visibility_timeout = 1.0
    for n in range(12):
        stage.put(stage.queue, b"%d" % n)
    reader = stage.reader()
    letters = reader.read(limit=12, wait=0)
    time.sleep(1.1)  # the timeout is counted in whole seconds, by the server
    stage.put(stage.queue, b"next")

    rounds = [reader.read(limit=20, wait=0) for _ in range(2)]
    reader.acknowledge([letter.handle for letter in letters])

    assert [[one.body for one in batch] for batch in rounds] == [[b"next"], []]
    assert stage.contents(stage.queue) == [(b"next", ())]


def test_extended_messages_stay_hidden_and_released_ones_are_visible(
    stage: SqsStage,
) -> None:
    for n in range(3):
        stage.put(stage.queue, b"%d" % n)
    reader, other = stage.reader(), stage.reader()
    extended, released, _ = reader.read(limit=3, wait=0)
    before = {one.body: one.visible_at for one in stage.server.look(stage.queue)}

    reader.release([released.handle, "unheard of"])
    at_once = other.read(limit=3, wait=0)
    reader.extend([extended.handle])
    after = {one.body: one.visible_at for one in stage.server.look(stage.queue)}

    assert [one.body for one in at_once] == [b"1"]
    assert after["0"] > before["0"]
    assert after["2"] == before["2"]


def test_acknowledging_a_removed_message_does_no_harm(stage: SqsStage) -> None:
    for n in range(12):
        stage.put(stage.queue, b"%d" % n)
    reader = stage.reader()
    letters = reader.read(limit=12, wait=0)
    stage.client.purge_queue(QueueUrl=stage.url_of(stage.queue))
    stage.put(stage.queue, b"after")

    reader.acknowledge([letter.handle for letter in letters] * 2)
    reader.acknowledge(["unheard of"])

    assert stage.contents(stage.queue) == [(b"after", ())]


def test_peek_returns_nothing_and_changes_no_count(stage: SqsStage) -> None:
    stage.put(stage.queue, b"x")

    assert stage.reader().peek(limit=10) == []

    assert [message.receives for message in stage.server.look(stage.queue)] == [0]
    assert CAPABILITIES.peeks is False


def test_the_depth_counts_what_is_hidden_too(stage: SqsStage) -> None:
    for n in range(3):
        stage.put(stage.queue, b"%d" % n)
    stage.reader().read(limit=1, wait=0)
    admin = stage.admin()

    assert admin.depth() == 3
    assert (admin.consumers(), admin.oldest_at(), admin.delivered()) == ([], None, None)


def test_a_dead_letter_queue_that_is_not_there_is_named(stage: SqsStage) -> None:
    stage.client.delete_queue(QueueUrl=stage.url_of(stage.queue))

    with pytest.raises(QueueMissing, match=stage.queue):
        stage.reader().read(limit=1, wait=0)
    with pytest.raises(QueueMissing, match=stage.queue):
        stage.admin().depth()


def test_queues_are_found_page_by_page_with_their_dead_letter_queues(
    stage: SqsStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = len(stage.client.list_queues()["QueueUrls"]) // 2
    monkeypatch.setattr("apps.brokers.adapters.sqs.inspection.QUEUES_PAGE", half)
    stage.put(stage.topic, b"x")
    stage.put(stage.queue, b"y")
    stage.declare(f"{stage.topic}-alone")

    topics = {topic.name: topic for topic in stage.broker_admin().discover()}

    ours = topics[stage.topic]
    assert (ours.depth, ours.dead_letter_queue, ours.dead_letters) == (
        1,
        stage.queue,
        1,
    )
    assert topics[f"{stage.topic}-alone"].dead_letter_queue == ""
    assert topics[f"{stage.topic}-alone"].dead_letters is None
    assert stage.queue not in topics
    assert list(topics) == sorted(topics)


def test_a_ping_says_where_sqs_is_or_that_it_is_away(stage: SqsStage) -> None:
    admin = stage.broker_admin()

    assert admin.ping().startswith("Amazon SQS in eu-central-1")

    stage.go_away()
    with pytest.raises(Unavailable, match="away"):
        admin.ping()


def test_a_message_is_unknown_when_sqs_hangs(
    stage: SqsStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.brokers.adapters.sqs.sqs_calls.REPLY_SECONDS", 3.0)
    publisher, reader = stage.publisher(), stage.reader()
    before = publisher.publish([outbound(stage.topic, b"before")])
    assert [one.kind for one in before] == [SENT]
    reader.read(limit=1, wait=0)
    begun, calls = time.monotonic(), stage.server.gate.calls["SendMessageBatch"]

    stage.server.freeze()
    outcomes = publisher.publish([outbound(stage.topic, b"%d" % n) for n in range(25)])
    with pytest.raises(Unavailable):
        reader.read(limit=1, wait=0)
    took = time.monotonic() - begun
    stage.come_back()

    assert [one.kind for one in outcomes] == [UNKNOWN] * 10 + [UNSENT] * 15
    # A repeated call might send it twice.
    assert stage.server.gate.calls["SendMessageBatch"] - calls == 1
    assert took < 30


@pytest.mark.parametrize("seed", range(6))
def test_a_message_is_sent_only_when_sqs_answered(stage: SqsStage, seed: int) -> None:
    # A reply has 10 times 100 bytes and 300 of its head; a request has 600.
    cut = random.Random(seed).randrange(1_400)
    cuts = {"after_requests": cut} if seed % 2 else {"after_replies": cut}
    window = [outbound(stage.topic, b"%d" % n) for n in range(15)]

    with cutting(stage.server.port, **cuts) as port:
        address = SqsAddress.of(
            stage.server.url, {"endpoint_url": f"http://127.0.0.1:{port}"}
        )
        publisher = SqsPublisher(address)
        publisher._wire._urls[stage.topic] = stage.url_of(stage.topic)
        outcomes = publisher.publish(window)
        publisher.close()

    confirmed = {n for n, one in enumerate(outcomes) if one.kind is SENT}
    stored = [int(body) for body, _ in stage.contents(stage.topic)]
    unsent = {n for n, one in enumerate(outcomes) if one.kind is UNSENT}
    assert {one.kind for one in outcomes} <= {SENT, UNKNOWN, UNSENT}
    assert confirmed <= set(stored)
    assert unsent.isdisjoint(stored)
    assert len(stored) == len(set(stored))
    # The proxy accepts one connection: the second call never gets through.
    assert SENT not in {one.kind for one in outcomes[10:]}


def test_a_message_may_be_held_back_for_a_quarter_of_an_hour(stage: SqsStage) -> None:
    longest = int(CAPABILITIES.delay)
    stage.send(stage.topic, "x", DelaySeconds=longest)

    with pytest.raises(stage.client.exceptions.ClientError, match="DelaySeconds"):
        stage.send(stage.topic, "x", DelaySeconds=longest + 1)

    assert stage.receive(stage.topic) == []


def test_the_capabilities_claim_only_what_a_standard_queue_does(
    stage: SqsStage,
) -> None:
    again = [outbound(stage.topic, b"x", dedupe="poisonweb-7-1") for _ in "ab"]

    stage.publisher().publish(again)

    assert len(stage.contents(stage.topic)) == 2
    assert (CAPABILITIES.dedupe_window, CAPABILITIES.ordering) == (0, Ordering.NONE)
    assert ADAPTER.ordering(stage.topic) is Ordering.NONE
    assert CAPABILITIES.durability is Durability.REPLICATED
    assert (CAPABILITIES.headers, CAPABILITIES.counting) == (
        Headers.TEXT,
        Counting.BROKER,
    )


def outbound(
    topic: str,
    body: bytes,
    headers: tuple[Header, ...] = (),
    *,
    dedupe: str = "",
    key: str = "",
) -> Outbound:
    return Outbound(topic=topic, body=body, headers=headers, dedupe=dedupe, key=key)


def drain(stage: SqsStage) -> list[Any]:
    """Read and acknowledge to the end: a held message makes its group wait."""
    reader = stage.reader()
    letters: list[Any] = []
    while batch := reader.read(limit=100, wait=0):
        letters += batch
        reader.acknowledge([letter.handle for letter in batch])
    return letters
