"""The contract of the broker ports, for every adapter and the broker in memory.

Where brokers differ, the tests read it from their capabilities, and nowhere else.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Timer

import pytest

from apps.brokers import adapters
from apps.brokers.adapter_contract import (
    Capabilities,
    DeadLetter,
    DeadLetterReader,
    Durability,
    Header,
    Headers,
    Ordering,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.core import clock
from apps.core.errors import Unavailable
from tests.contracts.broker_kinds import KINDS
from tests.contracts.cutting_and_counting_proxies import counting
from tests.contracts.topic_fixture_interface import (
    Message,
    RealStage,
    TopicFixture,
    outbound,
)
from tests.waiting import wait_until

SENT, REFUSED, UNKNOWN = OutcomeKind.SENT, OutcomeKind.REFUSED, OutcomeKind.UNKNOWN
UNSENT = OutcomeKind.UNSENT
KILLS = 20 if os.environ.get("SOAK") else 1
WINDOW = 50
RIPE = 1.0
# Redis reports how long and how large a queue is, before it is read.
FEW_REQUESTS = 3
# Only the soak sends a larger message to the server; its refusal costs nothing.
LARGEST_OF_EVERY_DAY = 2**24
MOST_HEADERS_OF_EVERY_DAY = 20_000
# The visibility timeout of a stage, and a little more.
PATIENCE = 60.0
EVERY_BYTE = bytes(range(256))
HEADER = ((b"content-type", b"text/plain"),)


# Headers of all kinds: one kind's reserved header is an ordinary one to others.
RESERVED_SOMEWHERE = frozenset().union(
    *(adapters.adapter(kind).capabilities.reserved for kind in KINDS)
)


@dataclass(frozen=True, slots=True)
class CarriedMessage:
    """A message, and the capability that a broker needs to carry it.

    A broker refuses what it cannot carry; the message never arrives changed.
    """

    body: bytes
    headers: tuple[Header, ...] = ()
    needs: Headers | None = Headers.NONE

    def must_arrive(self, capabilities: Capabilities) -> bool:
        levels = list(Headers)
        return (
            self.needs is not None
            and levels.index(self.needs) <= levels.index(capabilities.headers)
            and len(self.headers) <= (capabilities.most_headers or len(self.headers))
            and size_of(self.body, self.headers) <= capabilities.max_message
        )


CASES = {
    "plain text": CarriedMessage(b"body"),
    "text that is not ASCII": CarriedMessage("Grüße, 世界 \N{PILE OF POO}".encode()),
    "every byte value": CarriedMessage(EVERY_BYTE),
    "NUL, CRLF and what is not UTF-8": CarriedMessage(b"\0\r\n\xff\xfe"),
    "what looks like base64": CarriedMessage(b"Ym9keQ=="),
    "markup": CarriedMessage(b"<a>&amp;</a>\r\n]]>"),
    "five megabytes": CarriedMessage(EVERY_BYTE * 20_480),
    "an empty body": CarriedMessage(b"", HEADER, needs=None),
    "nothing at all": CarriedMessage(b"", needs=None),
    "a header": CarriedMessage(b"body", HEADER, needs=Headers.TEXT),
    "headers out of order": CarriedMessage(
        b"body", ((b"z", b"1"), (b"a", b"2"), (b"m", b"3")), needs=Headers.TEXT
    ),
    "any bytes in a header": CarriedMessage(
        b"body", ((b"raw", EVERY_BYTE),), Headers.BYTES
    ),
    "an empty header": CarriedMessage(b"body", ((b"empty", b""),), needs=None),
    "an empty header name": CarriedMessage(b"body", ((b"", b"value"),), needs=None),
    "any bytes in a name": CarriedMessage(
        b"body", ((EVERY_BYTE, b"value"),), needs=None
    ),
    "a line break in a name": CarriedMessage(
        b"body", ((b"a\r\nb: c", b"\r\n"),), needs=None
    ),
    "a long name": CarriedMessage(b"body", ((b"n" * 300, b"value"),), needs=None),
    "one name twice": CarriedMessage(
        b"body", ((b"tag", b"a"), (b"tag", b"b")), needs=None
    ),
    "the same header twice": CarriedMessage(b"body", (*HEADER, *HEADER), needs=None),
    "a header named like the body": CarriedMessage(
        b"body", ((b"body", b"other"),), needs=None
    ),
    "a thousand headers": CarriedMessage(
        b"body", tuple((b"h%d" % n, b"v") for n in range(1000)), needs=Headers.TEXT
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_message_arrives_byte_for_byte_or_is_refused(
    stage: TopicFixture, name: str
) -> None:
    case = CASES[name]
    message = Outbound(topic=stage.queue, body=case.body, headers=case.headers)

    (outcome,) = stage.publisher().publish([message])

    if case.must_arrive(stage.capabilities) or outcome.kind is SENT:
        assert (outcome.kind, outcome.detail) == (SENT, "")
        (letter,) = read_all(stage.reader(), 1)
        assert same(letter, stage) == same(case, stage)
        assert letter.size == size_of(letter.body, letter.headers)
    else:
        assert outcome.kind is REFUSED
        assert outcome.detail
        assert stage.contents(stage.queue) == []


@pytest.mark.parametrize("name", sorted(RESERVED_SOMEWHERE))
def test_a_reserved_header_stays_behind_and_all_others_arrive(
    real_stage: TopicFixture, name: bytes
) -> None:
    capabilities = real_stage.capabilities
    headers_in = ((name, b"0"), *HEADER)
    message = Outbound(topic=real_stage.topic, body=b"body", headers=headers_in)

    (outcome,) = real_stage.publisher().publish([message])

    expected = tuple(h for h in headers_in if h[0] not in capabilities.reserved)
    if capabilities.headers is Headers.NONE:
        # No header is dropped silently: what cannot come along is refused.
        assert (outcome.kind, capabilities.reserved) == (REFUSED, frozenset())
    else:
        assert (outcome.kind, outcome.detail) == (SENT, "")
        ((body, headers),) = real_stage.contents(real_stage.topic)
        assert (body, sorted(headers)) == (b"body", sorted(expected))


def test_redriven_dead_letters_are_the_messages_that_came(stage: TopicFixture) -> None:
    fit = [case for case in CASES.values() if case.must_arrive(stage.capabilities)]
    for case in fit:
        stage.put(stage.queue, case.body, case.headers)
    letters = read_all(stage.reader(), len(fit))

    outcomes = stage.publisher().publish(
        [
            Outbound(topic=stage.topic, body=letter.body, headers=letter.headers)
            for letter in letters
        ]
    )

    there = Counter((body, tuple(sorted(h))) for body, h in stage.contents(stage.topic))
    assert {outcome.kind for outcome in outcomes} == {SENT}
    assert there == Counter((case.body, tuple(sorted(case.headers))) for case in fit)


def test_a_message_of_the_limit_arrives_and_a_byte_more_is_refused(
    real_stage: TopicFixture,
) -> None:
    limit = real_stage.capabilities.max_message
    fits = limit <= LARGEST_OF_EVERY_DAY or "SOAK" in os.environ
    sizes = [limit + 1, *([limit - 1, limit] if fits else [])]

    refused, *accepted = (
        real_stage.publisher().publish([sized(real_stage, b"x" * size)])[0]
        for size in sizes
    )

    assert (refused.kind, bool(refused.detail)) == (REFUSED, True)
    assert {outcome.kind for outcome in accepted} <= {SENT}
    there = [len(body) for body, _ in real_stage.contents(real_stage.topic)]
    assert sorted(there) == sizes[1:]


def test_headers_are_counted_where_the_capabilities_say_so(
    real_stage: TopicFixture,
) -> None:
    capabilities = real_stage.capabilities
    if capabilities.headers is Headers.NONE:
        assert not capabilities.counts_headers
        return
    body = b"x" * (capabilities.max_message - size_of(b"", HEADER) + 1)
    message = Outbound(topic=real_stage.topic, body=body, headers=HEADER)

    if capabilities.counts_headers:
        (outcome,) = real_stage.publisher().publish([message])
        assert outcome.kind is REFUSED
    elif len(body) <= LARGEST_OF_EVERY_DAY:
        (outcome,) = real_stage.publisher().publish([message])
        assert outcome.kind is SENT


def test_as_many_headers_as_can_be_arrive_and_one_more_is_refused(
    real_stage: TopicFixture,
) -> None:
    most = real_stage.capabilities.most_headers
    few = most is None or most <= MOST_HEADERS_OF_EVERY_DAY or "SOAK" in os.environ
    number = 0 if real_stage.capabilities.headers is Headers.NONE else most or 1_000
    window = [sized(real_stage, b"body", headers=number)] * few
    over = sized(real_stage, b"over", headers=number + 1)

    *accepted, refused = real_stage.publisher().publish([*window, over])

    there = [len(headers) for _, headers in real_stage.contents(real_stage.topic)]
    without_end = most is None and number > 0
    assert refused.kind is (SENT if without_end else REFUSED)
    assert {outcome.kind for outcome in accepted} <= {SENT}
    assert there == [number] * few + [number + 1] * without_end


def test_ordered_messages_keep_their_order(real_stage: TopicFixture) -> None:
    messages = [
        Outbound(topic=real_stage.topic, body=b"%d" % n, headers=(), key=f"k{n % 3}")
        for n in range(60)
    ]

    real_stage.publisher().publish(messages)

    there = [int(body) for body, _ in real_stage.contents(real_stage.topic)]
    match real_stage.capabilities.ordering:
        case Ordering.TOPIC:
            assert there == list(range(60))
        case Ordering.KEY:
            keys = [[n for n in there if n % 3 == key] for key in range(3)]
            assert keys == [list(range(key, 60, 3)) for key in range(3)]
        case Ordering.NONE:
            assert sorted(there) == list(range(60))


def test_a_repeated_send_is_a_duplicate_where_the_broker_dedupes(
    real_stage: TopicFixture,
) -> None:
    message = Outbound(
        topic=real_stage.topic, body=b"once", headers=(), dedupe="poisonweb-1-1"
    )

    (first,), (again,) = (real_stage.publisher().publish([message]) for _ in range(2))

    remembers = real_stage.capabilities.dedupe_window > 0
    assert first.kind is SENT
    assert again.kind is (OutcomeKind.DUPLICATE if remembers else SENT)
    assert len(real_stage.contents(real_stage.topic)) == (1 if remembers else 2)


def test_sent_means_it_is_in_the_topic(stage: TopicFixture) -> None:
    messages = [outbound(stage.topic, n) for n in range(60)]

    outcomes = stage.publisher().publish(messages)

    there = [body for body, _ in stage.contents(stage.topic)]
    names = [outcome.bookmark for outcome in outcomes if outcome.bookmark]
    assert {outcome.kind for outcome in outcomes} == {SENT}
    assert sorted(there) == sorted(bodies(60))
    assert len(set(names)) == len(names)


def test_a_message_without_a_queue_is_not_sent_and_stops_no_other(
    stage: TopicFixture,
) -> None:
    nowhere = f"{stage.topic}-nowhere"
    window = [outbound(stage.topic, 0), outbound(nowhere, 1), outbound(stage.topic, 2)]

    before, odd, after = stage.publisher().publish(window)

    assert (before.kind, after.kind) == (SENT, SENT)
    assert sorted(body for body, _ in stage.contents(stage.topic)) == [b"0", b"2"]
    if odd.kind is SENT:
        assert stage.contents(nowhere) == [(b"1", ())]
    else:
        assert (odd.kind, bool(odd.detail)) == (REFUSED, True)


def test_messages_go_each_to_its_own_topic(stage: TopicFixture) -> None:
    stage.publisher().publish([outbound(stage.topic, 0), outbound(stage.queue, 1)])

    assert stage.contents(stage.topic) == [(b"0", ())]
    assert stage.contents(stage.queue) == [(b"1", ())]


def test_publishing_no_messages_returns_no_outcomes(stage: TopicFixture) -> None:
    assert stage.publisher().publish([]) == []


def test_an_outage_loses_nothing_and_sends_nothing(stage: TopicFixture) -> None:
    publisher, reader, admin = stage.publisher(), stage.reader(), stage.admin()
    publisher.publish([outbound(stage.topic, 0)])
    put_numbered(stage, 2)
    read_all(reader, 1)
    stage.go_away()

    try:
        for call in (
            lambda: publisher.publish([outbound(stage.topic, 1)]),
            lambda: stage.publisher().publish([outbound(stage.topic, 2)]),
            lambda: reader.read(limit=1, wait=0),
            admin.depth,
            lambda: stage.broker_admin().ping(),
        ):
            with pytest.raises(Unavailable):
                call()
    finally:
        stage.come_back()

    again = read_all(reader, 2)
    assert in_order(stage, [letter.body for letter in again]) == bodies(2)
    assert stage.contents(stage.topic) == [(b"0", ())]
    assert publisher.publish([outbound(stage.topic, 3)])[0].kind is SENT


def test_a_broker_that_refuses_connections_leaves_every_message_unsent(
    kind: str, real_stage: RealStage
) -> None:
    broker = Broker(pk=1, kind=kind, url=real_stage.broker.url)
    broker.options = dict(real_stage.broker.options)
    topic = Topic(name="t", native_name=real_stage.topic, broker=broker)
    window = [RoutedMessage(topic=topic, body=b"%d" % n, headers=()) for n in range(30)]

    with RoutingPublisher() as connected, RoutingPublisher() as idle:
        (before,) = connected.publish(window[:1])
        real_stage.go_away()
        try:
            outcomes = [*connected.publish(window[1:]), *idle.publish(window[1:])]
        finally:
            real_stage.come_back()

    assert before.kind is SENT
    assert {outcome.kind for outcome in outcomes} == {UNSENT}
    assert all(outcome.detail for outcome in outcomes)
    assert [body for body, _ in real_stage.contents(real_stage.topic)] == [b"0"]


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_kill_loses_nothing_that_was_sent_and_the_unknown_is_sent_again(
    kind: str, real_stage: TopicFixture, seed: int
) -> None:
    chance = random.Random(seed)
    # RabbitMQ loses a quorum queue and its messages if it is killed within half a
    # second of the declaration.
    time.sleep(RIPE)
    tried, outcomes = publish_until_killed(
        real_stage, windows=chance.randrange(1, 4), moment=chance.uniform(0, 0.02)
    )
    real_stage.come_back()
    results = list(zip(tried, outcomes, strict=True))
    unknown = [message for message, one in results if one.kind is UNKNOWN]
    unsent = {message.body for message, one in results if one.kind is UNSENT}

    again = real_stage.publisher().publish(unknown)

    there = Counter(body for body, _ in real_stage.contents(real_stage.topic))
    confirmed = {message.body for message, one in results if one.kind is SENT}
    assert {one.kind for one in outcomes} <= {SENT, UNKNOWN, UNSENT}
    assert unsent.isdisjoint(there)
    assert {one.kind for one in again} <= {SENT, OutcomeKind.DUPLICATE}, again[:1]
    assert set(there) >= confirmed | {message.body for message in unknown}
    assert all(there[body] == 1 for body in confirmed)
    assert max(there.values()) <= 2
    # A kill can show no more, since the operating system keeps its data; a power cut
    # would, and no capability claims that. That a service has several copies is the
    # service's own claim:
    expected = Durability.REPLICATED if KINDS[kind].stands_in else Durability.PAGE_CACHE
    assert real_stage.capabilities.durability is expected


def test_a_producer_may_have_a_message_held_back_where_the_capabilities_say_so(
    real_stage: RealStage,
) -> None:
    real_stage.put_later(real_stage.topic, b"later", seconds=5)
    # Poisonweb never sends with a delay.
    real_stage.publisher().publish([outbound(real_stage.topic, 0)])

    at_once = sorted(body for body, _ in real_stage.consume(real_stage.topic))

    if real_stage.capabilities.delay == 0:
        assert at_once == [b"0", b"later"]
        return
    in_time = wait_until(lambda: real_stage.consume(real_stage.topic))
    assert (at_once, [body for body, _ in in_time]) == ([b"0"], [b"later"])


def test_looking_for_dead_letters_costs_what_the_capabilities_say(
    kind: str, real_stage: RealStage
) -> None:
    costs = list[int]()
    with counting(real_stage.broker) as (broker, counted):
        reader = adapters.adapter(kind).dead_letter_reader(broker, real_stage.settings)
        reader.read(limit=1, wait=0)
        for wait in (0.0, 0.0, 1.0):
            before = counted.requests
            assert reader.read(limit=1, wait=wait) == []
            costs.append(counted.requests - before)
        reader.close()

    *looks, waiting = costs
    is_paid_for = real_stage.capabilities.polling_interval > 0
    # A service bills each request; one's own broker bills none.
    assert is_paid_for is KINDS[kind].stands_in
    if is_paid_for:
        # Half as many looks cost half as much.
        assert looks == [1, 1]
    else:
        # The broker keeps a waiting request for any time: there is nothing to save. A
        # request sent in two pieces may count as two.
        assert max(*looks, waiting) <= FEW_REQUESTS


def test_dead_letters_come_oldest_first_and_no_more_than_asked_for(
    stage: TopicFixture,
) -> None:
    put_numbered(stage, 10)
    reader = stage.reader()

    batches = [reader.read(limit=4, wait=1) for _ in range(4)]
    letters = [letter for batch in batches for letter in batch]
    letters += read_all(reader, 10 - len(letters))

    assert max(map(len, batches)) <= 4
    assert in_order(stage, [letter.body for letter in letters]) == bodies(10)
    assert {letter.queue for letter in letters} == {stage.queue}
    assert reader.read(limit=4, wait=0) == []


def test_each_dead_letter_has_a_handle_of_its_own(stage: TopicFixture) -> None:
    put_numbered(stage, 5)

    letters = read_all(stage.reader(), 5)

    assert len({letter.handle for letter in letters}) == 5
    assert not any(letter.redelivered for letter in letters)


def test_reading_waits_for_the_first_dead_letter(stage: TopicFixture) -> None:
    reader = stage.reader()
    reader.read(limit=1, wait=0)
    later = Timer(0.1, put_numbered, (stage, 1))
    later.start()

    begun = time.monotonic()
    letters = reader.read(limit=1, wait=20)

    later.join()
    assert [letter.body for letter in letters] == bodies(1)
    assert time.monotonic() - begun < 15


def test_reading_does_not_wait_longer_than_it_may(stage: TopicFixture) -> None:
    reader = stage.reader()
    reader.read(limit=1, wait=0)
    begun = time.monotonic()

    assert reader.read(limit=1, wait=0.05) == []
    assert reader.read(limit=1, wait=0) == []

    assert time.monotonic() - begun < 15


def test_an_acknowledged_dead_letter_is_gone_for_good(stage: TopicFixture) -> None:
    put_numbered(stage, 3)
    reader = stage.reader()
    first, second, third = read_all(reader, 3)

    reader.acknowledge([first.handle, third.handle])
    reader.close()

    later = stage.reader()
    assert [letter.body for letter in read_all(later, 1)] == [second.body]
    assert later.read(limit=3, wait=0.2) == []


def test_acknowledging_twice_or_nothing_does_no_harm(stage: TopicFixture) -> None:
    put_numbered(stage, 2)
    reader = stage.reader()
    first, second = read_all(reader, 2)

    reader.acknowledge([first.handle])
    reader.acknowledge([first.handle])
    reader.acknowledge([])
    reader.close()

    assert [letter.body for letter in read_all(stage.reader(), 1)] == [second.body]


def test_what_was_not_acknowledged_comes_back_after_a_restart(
    stage: TopicFixture,
) -> None:
    put_numbered(stage, 5)
    reader = stage.reader()
    before = read_all(reader, 3)
    reader.close()

    again = read_all(stage.reader(), 5)

    assert len(before) == 3
    assert in_order(stage, [letter.body for letter in again]) == bodies(5)


def test_held_dead_letters_come_once_and_block_nothing(stage: TopicFixture) -> None:
    put_numbered(stage, 30)
    reader = stage.reader()
    letters = read_all(reader, 30)
    stage.put(stage.queue, b"next")

    rounds = [reader.read(limit=10, wait=0.2) for _ in range(3)]

    assert len(letters) == 30
    assert [letter.body for batch in rounds for letter in batch] == [b"next"]


def test_released_dead_letters_go_back_unchanged(stage: TopicFixture) -> None:
    put_numbered(stage, 3)
    reader = stage.reader()
    letters = read_all(reader, 3)

    reader.release([letter.handle for letter in letters])
    reader.close()
    begun = time.monotonic()
    again = read_all(stage.reader(), 3)

    assert in_order(stage, [letter.body for letter in again]) == bodies(3)
    # By the visibility timeout alone, their return would take a minute.
    assert time.monotonic() - begun < 30


def test_peeking_changes_nothing(stage: TopicFixture) -> None:
    put_numbered(stage, 3)
    looker = stage.reader()

    looks = [looker.peek(limit=2) for _ in range(3)]
    looker.close()
    reader = stage.reader()
    letters = read_all(reader, 3)
    reader.acknowledge([letter.handle for letter in letters])
    stage.put(stage.queue, b"unseen")
    (unseen,) = read_all(reader, 1)

    counts = {(letter.dequeue_count, letter.redelivered) for letter in letters}
    assert counts == {(unseen.dequeue_count, False)}
    for look in looks:
        peeked = [letter.body for letter in look]
        assert peeked == (bodies(2) if stage.capabilities.peeks else [])


def test_depth_and_oldest_at_describe_the_queue(stage: TopicFixture) -> None:
    empty = stage.admin().depth(), stage.admin().oldest_at()
    put_numbered(stage, 3)

    depth, oldest = stage.admin().depth(), stage.admin().oldest_at()

    assert empty == (0, None)
    assert depth == 3
    assert oldest is None or abs(oldest - clock.now()) < timedelta(minutes=1)


def test_what_was_delivered_is_counted_where_the_broker_does(
    stage: TopicFixture,
) -> None:
    for body in bodies(5):
        stage.put(stage.topic, body)
    stage.consume(stage.topic)

    admin = stage.admin()

    def is_counted() -> bool:
        counted = admin.delivered()
        return counted is None or counted.total >= 5

    # RabbitMQ counts every few seconds, maybe while they are being consumed.
    wait_until(is_counted, describe=admin.delivered)
    assert stage.capabilities.delivered or admin.delivered() is None


def test_a_batch_ends_at_its_limit_of_bytes(stage: TopicFixture) -> None:
    # Eight messages of the largest size do not fill a batch.
    body = b"x" * (20_000_000 if stage.capabilities.max_message > 20_000_000 else 1)
    for _ in range(8):
        stage.put(stage.queue, body)
    reader = stage.reader()

    sizes = list[int]()
    while sum(sizes) < 8:
        sizes.append(len(reader.read(limit=100, wait=PATIENCE)))
        assert sizes[-1]

    assert max(sizes) * len(body) <= 80_000_000


def test_a_broker_says_what_it_is_and_which_topics_it_has(
    real_stage: TopicFixture,
) -> None:
    real_stage.put(real_stage.topic, b"0")
    put_numbered(real_stage, 2)

    description = real_stage.broker_admin().ping()
    topics = {topic.name: topic for topic in real_stage.broker_admin().discover()}

    assert description
    assert real_stage.queue not in topics
    topic = topics[real_stage.topic]
    assert topic.dead_letter_queue == real_stage.queue
    assert (topic.depth, topic.dead_letters) == (1, 2)


def test_ping_and_discovery_change_nothing_at_the_broker(
    real_stage: TopicFixture,
) -> None:
    put_numbered(real_stage, 2)
    real_stage.put(real_stage.topic, b"0")
    admin = real_stage.broker_admin()
    admin.ping()
    before = sorted(admin.discover(), key=lambda topic: topic.name)

    for _ in range(3):
        admin.ping()
        admin.discover()

    after = sorted(admin.discover(), key=lambda topic: topic.name)
    reader = real_stage.reader()
    letters = read_all(reader, 2)
    reader.acknowledge([letter.handle for letter in letters])
    real_stage.put(real_stage.queue, b"unseen")
    (unseen,) = read_all(reader, 1)
    assert after == before
    assert sorted(letter.body for letter in letters) == bodies(2)
    assert {(letter.dequeue_count, letter.redelivered) for letter in letters} == {
        (unseen.dequeue_count, False)
    }
    assert real_stage.contents(real_stage.topic) == [(b"0", ())]


def test_closing_twice_does_no_harm(stage: TopicFixture) -> None:
    ports = (stage.publisher(), stage.reader(), stage.admin(), stage.broker_admin())
    for port in ports:
        port.close()
        port.close()


def size_of(body: bytes, headers: Sequence[Header]) -> int:
    return len(body) + sum(len(name) + len(value) for name, value in headers)


def same(message: CarriedMessage | DeadLetter, stage: TopicFixture) -> Message:
    """Return what must be equal; only headers of bytes have an order."""
    ordered = stage.capabilities.headers is Headers.BYTES
    headers = message.headers if ordered else tuple(sorted(message.headers))
    return message.body, headers


def in_order(stage: TopicFixture, bodies: list[bytes]) -> list[bytes]:
    """Return the bodies as they came, sorted where the broker keeps no order."""
    keeps = stage.capabilities.ordering is Ordering.TOPIC
    return bodies if keeps else sorted(bodies)


def sized(stage: TopicFixture, body: bytes, *, headers: int = 0) -> Outbound:
    many = headers > MOST_HEADERS_OF_EVERY_DAY
    names = (b"h" if many else b"h%d" % n for n in range(headers))
    fields = tuple((name, b"v") for name in names)
    return Outbound(topic=stage.topic, body=body, headers=fields)


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def put_numbered(stage: TopicFixture, count: int) -> None:
    for body in bodies(count):
        stage.put(stage.queue, body)


def read_all(reader: DeadLetterReader, count: int) -> list[DeadLetter]:
    """Read until so many came, while a visibility timeout may hide them."""
    letters = list[DeadLetter]()

    def have_come() -> bool:
        letters.extend(reader.read(limit=count - len(letters), wait=0.5))
        return len(letters) == count

    wait_until(have_come, seconds=PATIENCE, describe=lambda: f"{len(letters)} came")
    return letters


def publish_until_killed(
    stage: TopicFixture, *, windows: int, moment: float
) -> tuple[list[Outbound], list[PublishOutcome]]:
    """Kill the broker after so many windows and seconds; return all attempts."""
    publisher, tried, outcomes = (
        stage.publisher(),
        list[Outbound](),
        list[PublishOutcome](),
    )
    killer = Timer(moment, stage.go_away)
    while True:
        if len(tried) == windows * WINDOW:
            killer.start()
        window = [numbered(stage.topic, len(tried) + n) for n in range(WINDOW)]
        try:
            outcomes += publisher.publish(window)
        except Unavailable:
            killer.join()
            return tried, outcomes
        tried += window


def numbered(topic: str, n: int) -> Outbound:
    return Outbound(topic=topic, body=b"%d" % n, headers=(), dedupe=f"poisonweb-{n}-1")
