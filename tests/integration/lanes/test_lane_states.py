"""The row of a lane has its state, its last error and its held letters."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from pytest_django import Settings

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.models import Topic
from apps.capture.lanes import dead_letter_drain, depth_polling
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.models import HeldDeadLetter, Lane, Mode
from apps.poison.models import Poison
from tests.in_memory_queue_broker import SENT, Queues
from tests.lane_crash_simulation import drain_all, draining, serving
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_last_error_stays_on_the_lane_with_its_time(
    broker: Queues, mail: Topic
) -> None:
    broker.away = True
    with serving():
        wait_until(lambda: Lane.objects.get().state == "away")
        broker.away = False
        wait_until(lambda: Lane.objects.get().state == "running")

    lane = Lane.objects.get()
    assert lane.error == "The queues in memory are away."
    assert lane.error_at is not None
    assert lane.detail == "0 in the dead-letter queue"


@pytest.mark.parametrize("mode", list(Mode))
def test_a_missing_queue_has_another_state_than_a_broker_that_is_away(
    broker: Queues, mail: Topic, mode: Mode
) -> None:
    tee_queue = "copies" if mode is Mode.TEE else ""
    Lane.objects.update(mode=mode.value, tee_queue=tee_queue, depth=7)
    broker.missing = True
    with serving():
        wait_until(lambda: Lane.objects.get().state == "missing")
        missing = Lane.objects.get()
        broker.missing = False
        wait_until(lambda: Lane.objects.get().state == "running")

    assert missing.detail == "In memory there is no queue mail-dead."
    assert missing.depth is None


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.CAPTURE])
def test_a_lane_resumes_when_its_missing_queue_is_created(
    broker: Queues, mail: Topic, mode: Mode
) -> None:
    Lane.objects.update(mode=mode.value, depth=7)
    broker.expects_queues = True
    with serving():
        wait_until(lambda: Lane.objects.get().state == "expected")
        began = Lane.objects.get().seen_at
        wait_until(lambda: Lane.objects.get().seen_at != began)
        waiting = Lane.objects.get()
        broker.put("mail-dead", b"first")
        wait_until(lambda: Lane.objects.get().state == "running")
        wait_until(lambda: Poison.objects.exists() is (mode is Mode.CAPTURE))

    assert waiting.state == "expected"
    assert waiting.detail == "There is no queue mail-dead yet."
    assert (waiting.depth, waiting.error) == (None, "")
    bodies = [body for body, _ in broker.contents("mail-dead")]
    assert bodies == ([] if mode is Mode.CAPTURE else [b"first"])


def test_the_row_tells_what_was_captured_and_how_fast(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    Lane.objects.update(mode=Mode.CAPTURE.value)
    timer = ManualClock()
    with draining(mail, now, timer) as work:
        for _ in range(3):
            broker.put("mail-dead", b"x")
        work.step()
        timer.now += 61
        broker.put("mail-dead", b"x")
        work.step()

    lane = Lane.objects.get()
    assert (lane.captured, lane.rate, lane.depth) == (4, 1.0, 0)


def test_a_lane_is_holding_until_refused_copies_are_sent(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    Lane.objects.update(mode=Mode.TEE.value, tee_queue="copies")
    broker.answer = lambda _: PublishOutcome(
        kind=OutcomeKind.REFUSED, detail="There is no queue copies."
    )
    for _ in range(3):
        broker.put("mail-dead", b"x")
    with draining(mail, now) as work:
        work.step()
    holding = Lane.objects.get()
    broker.answer = lambda _: SENT
    with draining(mail, now) as work:
        work.step()
    running = Lane.objects.get()

    assert (holding.state, running.state) == ("holding", "running")
    assert holding.detail == (
        "Not copied to copies, so held in the dead-letter queue: 3. "
        "There is no queue copies."
    )
    assert (holding.depth, running.detail) == (3, "0 in the dead-letter queue")


def test_a_hostile_refusal_is_stored_cleaned_and_cut(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    Lane.objects.update(mode=Mode.TEE.value, tee_queue="copies")
    words = "no \0 queue \ud800 " + "x" * 1_000
    broker.answer = lambda _: PublishOutcome(kind=OutcomeKind.REFUSED, detail=words)
    broker.put("mail-dead", b"x")

    with draining(mail, now) as work:
        work.step()

    lane, letter = Lane.objects.get(), HeldDeadLetter.objects.get()
    assert (lane.state, Poison.objects.count()) == ("holding", 1)
    for text in (lane.detail, letter.reason):
        assert "no \u2400 queue " in text
        assert len(text) == 500


@pytest.mark.parametrize("hides", [False, True])
def test_a_lane_is_running_again_once_the_letter_of_a_refused_copy_left(
    broker: Queues, mail: Topic, now: datetime, hides: bool
) -> None:
    broker.with_(extends=hides)
    Lane.objects.update(mode=Mode.TEE.value, tee_queue="copies")
    broker.answer = lambda _: PublishOutcome(kind=OutcomeKind.REFUSED, detail="No.")
    broker.put("mail-dead", b"x")
    timer, at = ManualClock(), [now]
    lane = Lane.objects.possible().get(pk=mail.pk)
    with Drain(lane=lane, clock=lambda: at[0], timer=timer) as work:
        work.step()
        state = Lane.objects.get().state
        broker.queues["mail-dead"].clear()
        at[0] += timedelta(seconds=dead_letter_drain.HELD_FOR + 1)
        for _ in range(3):
            timer.now += depth_polling.POLL_INTERVAL + 1
            work.step()

    assert (state, Lane.objects.get().state) == ("holding", "running")


def test_a_held_letter_removed_by_another_program_leaves_the_list(
    broker: Queues, mail: Topic, now: datetime, settings: Settings
) -> None:
    Lane.objects.update(mode=Mode.CAPTURE.value)
    settings.POISONWEB_BODY_LIMIT = 3
    timer = ManualClock()
    with draining(mail, now, timer) as work:
        for body in (b"large", b"larger"):
            broker.put("mail-dead", body)
        work.step()
        both = HeldDeadLetter.objects.count()
        broker.queues["mail-dead"].pop(0)
        timer.now += depth_polling.POLL_INTERVAL
        work.step()

    assert (both, HeldDeadLetter.objects.get().size) == (2, 6)


def test_a_new_reader_deletes_held_letters_that_left_the_queue(
    broker: Queues, mail: Topic, now: datetime, settings: Settings
) -> None:
    broker.with_(peeks=False)
    settings.POISONWEB_BODY_LIMIT = 3
    for body in (b"large", b"larger"):
        broker.put("mail-dead", body)
    drain_all(mail, now)
    broker.queues["mail-dead"].pop(0)

    drain_all(mail, now)

    assert HeldDeadLetter.objects.get().size == 6


def test_a_held_letter_is_listed_until_it_stops_coming_back(
    broker: Queues, mail: Topic, now: datetime, settings: Settings
) -> None:
    broker.with_(extends=True, peeks=False)
    settings.POISONWEB_BODY_LIMIT = 3
    broker.put("mail-dead", b"large")
    drain_all(mail, now)
    broker.queues["mail-dead"].clear()

    drain_all(mail, now + timedelta(seconds=dead_letter_drain.HELD_FOR - 1))
    hidden = HeldDeadLetter.objects.count()
    drain_all(mail, now + timedelta(seconds=dead_letter_drain.HELD_FOR + 1))

    assert (hidden, HeldDeadLetter.objects.count()) == (1, 0)
