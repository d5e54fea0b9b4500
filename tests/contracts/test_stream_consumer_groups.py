"""What only streams have: several consumer groups of one topic."""

from __future__ import annotations

import time

from apps.brokers.failure_headers import own_documented_headers as vocabulary
from poisonguard.contract import Cause
from tests.contracts.redis_streams_topic_fixture import RedisStage
from tests.contracts.topic_fixture_interface import (
    MAX_DEQUEUE_COUNT,
    VISIBILITY_TIMEOUT,
    StreamStage,
)

EVERY_BYTE = bytes(range(256))
HEADER = ((b"content-type", b"text/plain"),)


def test_a_message_handed_out_too_often_becomes_a_dead_letter(
    streams: StreamStage,
) -> None:
    streams.put(streams.topic, EVERY_BYTE, HEADER)
    (bookmark,) = streams.receive(consumer_group="billing", client_name="billing-1")
    hand_out_again(streams, bookmark, times=MAX_DEQUEUE_COUNT - 1)
    streams.advance(VISIBILITY_TIMEOUT)

    moved = streams.reader().dead_letter_exhausted()

    ((body, headers),) = streams.contents(streams.queue)
    story = vocabulary.read(headers)
    assert moved == 1
    assert (body, vocabulary.leaving(headers)) == (EVERY_BYTE, HEADER)
    assert headers[: len(HEADER)] == HEADER
    assert story.cause is Cause.MAX_DEQUEUE_COUNT
    assert story.original_bookmark == bookmark
    assert story.attempts == MAX_DEQUEUE_COUNT
    assert (story.consumer_group, story.client_name) == ("billing", "billing-2")
    assert story.failed_at is not None


def test_a_dead_lettered_message_is_settled_for_its_group(streams: StreamStage) -> None:
    streams.put(streams.topic, b"body")
    (bookmark,) = streams.receive(consumer_group="billing", client_name="billing-1")
    hand_out_again(streams, bookmark, times=MAX_DEQUEUE_COUNT - 1)
    streams.advance(VISIBILITY_TIMEOUT)
    reader = streams.reader()

    moved = [reader.dead_letter_exhausted() for _ in range(2)]

    (position,) = streams.admin().consumers()
    assert moved == [1, 0]
    assert position.pending == 0
    assert len(streams.contents(streams.queue)) == 1


def test_dead_lettering_leaves_what_may_still_be_handled(streams: StreamStage) -> None:
    for n in range(4):
        streams.put(streams.topic, b"%d" % n)
    seldom, overdue, claimed, settled = streams.receive(
        consumer_group="billing", client_name="billing-1"
    )
    for bookmark in (overdue, claimed, settled):
        hand_out_again(streams, bookmark, times=MAX_DEQUEUE_COUNT - 1)
    hand_out_again(streams, seldom, times=MAX_DEQUEUE_COUNT - 2)
    streams.settle(settled, consumer_group="billing")
    streams.advance(VISIBILITY_TIMEOUT)
    hand_out_again(streams, claimed, times=1)

    moved = streams.reader().dead_letter_exhausted()

    (position,) = streams.admin().consumers()
    assert moved == 1
    assert [body for body, _ in streams.contents(streams.queue)] == [b"1"]
    assert position.pending == 2


def test_a_message_is_dead_lettered_per_consumer_group(streams: StreamStage) -> None:
    streams.put(streams.topic, b"body")
    for group in ("billing", "shipping", "mail"):
        (bookmark,) = streams.receive(consumer_group=group, client_name=f"{group}-1")
        again = MAX_DEQUEUE_COUNT - 1 if group != "mail" else 0
        hand_out_again(streams, bookmark, times=again, group=group)
    streams.advance(VISIBILITY_TIMEOUT)

    moved = streams.reader().dead_letter_exhausted()

    stories = [
        vocabulary.read(headers) for _, headers in streams.contents(streams.queue)
    ]
    assert moved == 2
    assert {story.consumer_group for story in stories} == {"billing", "shipping"}


def test_a_missing_topic_has_neither_positions_nor_dead_letters(
    streams: StreamStage,
) -> None:
    assert streams.reader().dead_letter_exhausted() == 0
    assert streams.admin().consumers() == []
    assert streams.admin().depth() == 0


def test_positions_tell_how_far_each_group_has_read(streams: StreamStage) -> None:
    streams.put(streams.topic, b"0")
    streams.put(streams.topic, b"1")
    _, second = streams.receive(consumer_group="billing", client_name="billing-1")
    streams.settle(second, consumer_group="billing")
    streams.advance(30)

    (read_all,) = streams.admin().consumers()
    streams.put(streams.topic, b"2")
    (behind,) = streams.admin().consumers()

    assert read_all.consumer_group == "billing"
    assert (read_all.bookmark, read_all.head_bookmark) == (second, second)
    assert (read_all.seq, read_all.lag) == (read_all.head_seq, 0)
    assert (read_all.pending, read_all.clients) == (1, 1)
    assert read_all.oldest_pending_seconds is not None
    assert read_all.oldest_pending_seconds >= 0
    assert behind.bookmark == second
    assert behind.head_seq > behind.seq
    assert behind.lag in {1, None}


def test_seq_holds_the_time_where_seq_bits_say_so(
    redis_stage: RedisStage,
) -> None:
    before = time.time_ns() // 10**6
    redis_stage.put(redis_stage.topic, b"0")
    redis_stage.receive(consumer_group="billing", client_name="billing-1")
    after = time.time_ns() // 10**6

    (position,) = redis_stage.admin().consumers()

    bits = redis_stage.capabilities.seq_bits
    assert bits is not None
    assert before <= position.head_seq >> bits <= after


def hand_out_again(
    streams: StreamStage, bookmark: str, *, times: int, group: str = "billing"
) -> None:
    for _ in range(times):
        streams.receive_again(bookmark, consumer_group=group, client_name=f"{group}-2")
