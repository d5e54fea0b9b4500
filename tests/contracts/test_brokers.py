"""The contract of the broker ports, kept by every adapter and by the twin in memory."""

from __future__ import annotations

import time
from threading import Timer

import pytest

from apps.brokers.ports import Header, Outbound, OutcomeKind
from apps.brokers.vocabularies import poisonweb as vocabulary
from apps.core.errors import Unavailable
from poisonguard.contract import Cause
from tests.contracts.stages import MAX_DEQUEUE_COUNT, VISIBILITY_TIMEOUT, Stage

EVERY_BYTE = bytes(range(256))
HEADER = ((b"content-type", b"text/plain"),)

MESSAGES: dict[str, tuple[bytes, tuple[Header, ...]]] = {
    "every byte value": (EVERY_BYTE, ((EVERY_BYTE, EVERY_BYTE),)),
    "an empty body": (b"", HEADER),
    "no headers": (b"body", ()),
    "one header name twice": (b"body", ((b"tag", b"a"), (b"tag", b"b"))),
    "the same header twice": (b"body", (*HEADER, *HEADER)),
    "headers out of order": (b"body", ((b"z", b""), (b"a", b""), (b"m", b""))),
    "NUL, CRLF and bytes that are not UTF-8": (
        b"\0\r\n\xff",
        ((b"\0", b"\0"), (b"a\r\nb: c", b"\r\n"), (b"\xff\xfe", b"\xc3\x28")),
    ),
    "an empty header name": (b"body", ((b"", b"value"),)),
    "a header named like the body": (b"body", ((b"body", b"other"),)),
    "an empty header named like the body": (b"body", ((b"a", b"b"), (b"body", b""))),
    "a thousand headers": (b"body", tuple((b"h%d" % n, b"v") for n in range(1000))),
    "five megabytes": (EVERY_BYTE * 20_480, HEADER),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_arrives_byte_for_byte(stage: Stage, name: str) -> None:
    body, headers = MESSAGES[name]
    message = Outbound(topic=stage.queue, body=body, headers=headers)

    (outcome,) = stage.publisher().publish([message])
    (letter,) = stage.reader().read(limit=10, wait=0)

    assert outcome.kind is OutcomeKind.SENT
    assert (letter.body, letter.headers) == (body, headers)
    assert letter.size == len(body) + sum(len(n) + len(v) for n, v in headers)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_redriven_dead_letter_is_the_message_that_came(
    stage: Stage, name: str
) -> None:
    stage.put(stage.queue, *MESSAGES[name])
    (letter,) = stage.reader().read(limit=10, wait=0)

    stage.publisher().publish(
        [Outbound(topic=stage.topic, body=letter.body, headers=letter.headers)]
    )

    assert stage.contents(stage.topic) == stage.contents(stage.queue)


def test_sent_means_it_is_in_the_topic_at_its_bookmark(stage: Stage) -> None:
    messages = [outbound(stage.topic, n) for n in range(200)]

    outcomes = stage.publisher().publish(messages)

    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.SENT}
    assert [body for body, _ in stage.contents(stage.topic)] == bodies(200)
    assert [outcome.bookmark for outcome in outcomes] == stage.receive(
        consumer_group="billing", client_name="billing-1"
    )


def test_messages_go_each_to_its_own_topic(stage: Stage) -> None:
    elsewhere = f"{stage.topic}/über %20"

    stage.publisher().publish([outbound(stage.topic, 0), outbound(elsewhere, 1)])

    assert stage.contents(stage.topic) == [(b"0", ())]
    assert stage.contents(elsewhere) == [(b"1", ())]


def test_publishing_nothing_is_no_work(stage: Stage) -> None:
    assert stage.publisher().publish([]) == []


def test_nothing_was_sent_while_the_broker_is_away(stage: Stage) -> None:
    publisher, reader, admin = stage.publisher(), stage.reader(), stage.admin()
    publisher.publish([outbound(stage.topic, 0)])
    reader.read(limit=1, wait=0)
    stage.go_away()

    for call in (
        lambda: publisher.publish([outbound(stage.topic, 1)]),
        lambda: stage.publisher().publish([outbound(stage.topic, 2)]),
        lambda: reader.read(limit=1, wait=0),
        lambda: reader.acknowledge(["1"]),
        reader.dead_letter_exhausted,
        admin.consumers,
        admin.depth,
    ):
        with pytest.raises(Unavailable):
            call()
    stage.come_back()

    assert stage.contents(stage.topic) == [(b"0", ())]
    assert publisher.publish([outbound(stage.topic, 3)])[0].kind is OutcomeKind.SENT


def test_dead_letters_come_oldest_first_and_no_more_than_asked_for(
    stage: Stage,
) -> None:
    put_numbered(stage, 10)
    reader = stage.reader()

    batches = [reader.read(limit=4, wait=0) for _ in range(4)]

    assert [len(batch) for batch in batches] == [4, 4, 2, 0]
    assert [letter.body for batch in batches for letter in batch] == bodies(10)
    assert {letter.queue for letter in batches[0]} == {stage.queue}


def test_reading_waits_for_the_first_dead_letter(stage: Stage) -> None:
    reader = stage.reader()
    reader.read(limit=1, wait=0)
    later = Timer(0.1, put_numbered, (stage, 1))
    later.start()

    begun = time.monotonic()
    letters = reader.read(limit=1, wait=5)

    later.join()
    assert [letter.body for letter in letters] == bodies(1)
    assert time.monotonic() - begun < 3


def test_reading_does_not_wait_longer_than_it_may(stage: Stage) -> None:
    begun = time.monotonic()

    assert stage.reader().read(limit=1, wait=0.05) == []
    assert stage.reader().read(limit=1, wait=0) == []

    assert time.monotonic() - begun < 2


def test_an_acknowledged_dead_letter_is_gone_for_good(stage: Stage) -> None:
    put_numbered(stage, 3)
    reader = stage.reader()
    first, second, third = reader.read(limit=3, wait=0)

    reader.acknowledge([first.bookmark, third.bookmark])

    assert stage.contents(stage.queue) == [(b"1", ())]
    assert stage.reader().read(limit=3, wait=0) == [second]


def test_acknowledging_twice_or_nothing_does_no_harm(stage: Stage) -> None:
    put_numbered(stage, 2)
    reader = stage.reader()
    first, _ = reader.read(limit=2, wait=0)

    reader.acknowledge([first.bookmark])
    reader.acknowledge([first.bookmark])
    reader.acknowledge([])

    assert stage.contents(stage.queue) == [(b"1", ())]


def test_what_was_not_acknowledged_comes_back_after_a_restart(stage: Stage) -> None:
    put_numbered(stage, 5)
    before = stage.reader().read(limit=3, wait=0)

    restarted = stage.reader()
    again = restarted.read(limit=3, wait=0) + restarted.read(limit=3, wait=0)

    assert again[:3] == before
    assert [letter.body for letter in again] == bodies(5)


def test_what_was_not_acknowledged_comes_back_after_an_outage(stage: Stage) -> None:
    put_numbered(stage, 2)
    reader = stage.reader()
    before = reader.read(limit=1, wait=0)
    stage.go_away()
    with pytest.raises(Unavailable):
        reader.read(limit=1, wait=0)
    stage.come_back()

    again = reader.read(limit=5, wait=0)

    assert again[:1] == before
    assert [letter.body for letter in again] == bodies(2)


def test_held_dead_letters_come_once_and_block_nothing(stage: Stage) -> None:
    put_numbered(stage, 50)
    reader = stage.reader()
    held = reader.read(limit=50, wait=0)
    stage.put(stage.queue, b"next")

    rounds = [reader.read(limit=10, wait=0) for _ in range(3)]

    assert [[letter.body for letter in batch] for batch in rounds] == [
        [b"next"],
        [],
        [],
    ]
    assert stage.admin().depth() == len(held) + 1


def test_a_batch_ends_where_it_grows_heavy(stage: Stage) -> None:
    for _ in range(8):
        stage.put(stage.queue, b"x" * 20_000_000)
    reader = stage.reader()

    sizes = [len(reader.read(limit=100, wait=0)) for _ in range(3)]

    assert sum(sizes) == 8
    assert max(sizes) <= 4


def test_a_message_handed_out_too_often_becomes_a_dead_letter(stage: Stage) -> None:
    stage.put(stage.topic, EVERY_BYTE, HEADER)
    (bookmark,) = stage.receive(consumer_group="billing", client_name="billing-1")
    hand_out_again(stage, bookmark, times=MAX_DEQUEUE_COUNT - 1)
    stage.advance(VISIBILITY_TIMEOUT)

    moved = stage.reader().dead_letter_exhausted()

    ((body, headers),) = stage.contents(stage.queue)
    story = vocabulary.read(headers)
    assert moved == 1
    assert (body, vocabulary.leaving(headers)) == (EVERY_BYTE, HEADER)
    assert headers[: len(HEADER)] == HEADER
    assert story.cause is Cause.MAX_DEQUEUE_COUNT
    assert story.original_bookmark == bookmark
    assert story.attempts == MAX_DEQUEUE_COUNT
    assert (story.consumer_group, story.client_name) == ("billing", "billing-2")
    assert story.failed_at is not None


def test_a_dead_lettered_message_is_settled_for_its_group(stage: Stage) -> None:
    stage.put(stage.topic, b"body")
    (bookmark,) = stage.receive(consumer_group="billing", client_name="billing-1")
    hand_out_again(stage, bookmark, times=MAX_DEQUEUE_COUNT - 1)
    stage.advance(VISIBILITY_TIMEOUT)
    reader = stage.reader()

    moved = [reader.dead_letter_exhausted() for _ in range(2)]

    (position,) = stage.admin().consumers()
    assert moved == [1, 0]
    assert position.pending == 0
    assert len(stage.contents(stage.queue)) == 1


def test_dead_lettering_leaves_what_may_still_be_handled(stage: Stage) -> None:
    for n in range(4):
        stage.put(stage.topic, b"%d" % n)
    seldom, overdue, taken, settled = stage.receive(
        consumer_group="billing", client_name="billing-1"
    )
    for bookmark in (overdue, taken, settled):
        hand_out_again(stage, bookmark, times=MAX_DEQUEUE_COUNT - 1)
    hand_out_again(stage, seldom, times=MAX_DEQUEUE_COUNT - 2)
    stage.settle(settled, consumer_group="billing")
    stage.advance(VISIBILITY_TIMEOUT)
    hand_out_again(stage, taken, times=1)

    moved = stage.reader().dead_letter_exhausted()

    (position,) = stage.admin().consumers()
    assert moved == 1
    assert [body for body, _ in stage.contents(stage.queue)] == [b"1"]
    assert position.pending == 2


def test_each_consumer_group_gives_up_for_itself(stage: Stage) -> None:
    stage.put(stage.topic, b"body")
    for group in ("billing", "shipping", "mail"):
        (bookmark,) = stage.receive(consumer_group=group, client_name=f"{group}-1")
        again = MAX_DEQUEUE_COUNT - 1 if group != "mail" else 0
        hand_out_again(stage, bookmark, times=again, group=group)
    stage.advance(VISIBILITY_TIMEOUT)

    moved = stage.reader().dead_letter_exhausted()

    stories = [vocabulary.read(headers) for _, headers in stage.contents(stage.queue)]
    assert moved == 2
    assert {story.consumer_group for story in stories} == {"billing", "shipping"}


def test_a_topic_that_is_not_there_has_nothing_to_tell(stage: Stage) -> None:
    assert stage.reader().dead_letter_exhausted() == 0
    assert stage.admin().consumers() == []
    assert stage.admin().depth() == 0


def test_positions_tell_how_far_each_group_has_read(stage: Stage) -> None:
    stage.put(stage.topic, b"0")
    stage.put(stage.topic, b"1")
    _, second = stage.receive(consumer_group="billing", client_name="billing-1")
    stage.settle(second, consumer_group="billing")
    stage.advance(30)

    (read_all,) = stage.admin().consumers()
    stage.put(stage.topic, b"2")
    (behind,) = stage.admin().consumers()

    assert read_all.consumer_group == "billing"
    assert (read_all.bookmark, read_all.head_bookmark) == (second, second)
    assert (read_all.seq, read_all.lag) == (read_all.head_seq, 0)
    assert (read_all.pending, read_all.clients) == (1, 1)
    assert read_all.oldest_pending_seconds is not None
    assert read_all.oldest_pending_seconds >= 0
    assert behind.bookmark == second
    assert behind.head_seq > behind.seq
    assert behind.lag in {1, None}


def test_closing_twice_is_as_good_as_once(stage: Stage) -> None:
    for port in (stage.publisher(), stage.reader(), stage.admin()):
        port.close()
        port.close()


def outbound(topic: str, number: int) -> Outbound:
    return Outbound(topic=topic, body=b"%d" % number, headers=())


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def put_numbered(stage: Stage, count: int) -> None:
    for body in bodies(count):
        stage.put(stage.queue, body)


def hand_out_again(
    stage: Stage, bookmark: str, *, times: int, group: str = "billing"
) -> None:
    for _ in range(times):
        stage.receive_again(bookmark, consumer_group=group, client_name=f"{group}-2")
