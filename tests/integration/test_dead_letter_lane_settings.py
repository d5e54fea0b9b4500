"""Settings of a lane take effect within two seconds; its row has its state."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from datetime import datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import Settings

from apps.audit.models import Entry
from apps.brokers.adapter_contract import (
    Delivered,
    Outbound,
    OutcomeKind,
    PublishOutcome,
)
from apps.brokers.models import Topic
from apps.brokers.polling_interval_of_billed_queues import longest_interval
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.intake import services
from apps.capture.intake.occurrence import Occurrence
from apps.capture.intake.services import CaptureAnswer
from apps.capture.lanes import (
    dead_letter_drain,
    depth_polling,
    lane_mode_and_pause,
    observe_only_lane,
)
from apps.capture.lanes.batch_size_and_poll_interval import (
    LARGEST_BATCH,
    SMALLEST_BATCH,
    BatchSize,
    LaneRate,
    Polling,
)
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.lanes.depth_polling import POLL_INTERVAL
from apps.capture.lanes.observe_only_lane import Observer
from apps.capture.lanes.runner import LaneRunner, LaneWork
from apps.capture.models import Counter, HeldDeadLetter, Lane, Mode, Sample
from apps.core import advisory_locks, clock
from apps.core.actor import Actor
from apps.core.advisory_locks import Lock, Locks
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.dashboard.presentation.audit_entry_changes import changes
from apps.poison.models import Poison
from apps.team.rights import GRANTS, Principal, Role
from tests.failure_report_builders import count_up, counter
from tests.in_memory_queue_broker import SENT, Queues
from tests.lane_crash_simulation import drain_all, draining, serving, topic_on_queues
from tests.manual_clock import ManualClock
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ADMIN = Principal(actor=Actor.user("ada"), scopes=GRANTS[Role.ADMIN])
# What is promised, where nothing else works beside it.
TWO_SECONDS = 2.0 if os.environ.get("SOAK") else 60.0
MINUTE = timedelta(minutes=1)


@pytest.fixture
def mail(broker: Queues) -> Topic:
    return topic_on_queues(clock.now(), mode=Mode.OBSERVE)


def watching_lane(topic: Topic, now: datetime, timer: ManualClock) -> Observer:
    lane = Lane.objects.possible().get(pk=topic.pk)
    return Observer(lane=lane, clock=lambda: now, timer=timer)


# --- settings


def test_each_change_of_a_lane_is_audited_once(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    for _ in "ab":
        lane_mode_and_pause.set_mode(
            topic=mail, mode=Mode.TEE, tee_queue="copies", principal=ADMIN, now=now
        )
        lane_mode_and_pause.pause(topic=mail, principal=ADMIN, now=now)
    lane_mode_and_pause.resume(topic=mail, principal=ADMIN, now=now)

    said = Entry.objects.filter(record__contains="lane:mail").order_by("seq")
    assert [entry.action for entry in said] == [
        *("lane.set", "lane.paused", "lane.resumed"),
    ]
    lane = Lane.objects.get()
    assert (lane.mode, lane.tee_queue, lane.paused) == ("tee", "copies", False)


def test_the_trail_says_what_a_lane_did_before(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    lane_mode_and_pause.set_mode(
        topic=mail, mode=Mode.TEE, tee_queue="copies", principal=ADMIN, now=now
    )
    lane_mode_and_pause.set_mode(
        topic=mail, mode=Mode.CAPTURE, principal=ADMIN, now=now
    )

    first, second = (
        changes(entry)
        for entry in Entry.objects.filter(action="lane.set").order_by("seq")
    )
    assert first == [("mode", "observe", "tee"), ("tee_queue", "", "copies")]
    assert second == [("mode", "tee", "capture"), ("tee_queue", "copies", "")]


@pytest.mark.parametrize("queue", ["", "mail", "mail-dead", "a\0b"])
def test_copies_go_to_another_queue_that_is_named(
    broker: Queues, mail: Topic, now: datetime, queue: str
) -> None:
    with pytest.raises(Invalid, match="tee_queue"):
        lane_mode_and_pause.set_mode(
            topic=mail, mode=Mode.TEE, tee_queue=queue, principal=ADMIN, now=now
        )
    with pytest.raises(Invalid, match="sends no copies"):
        lane_mode_and_pause.set_mode(
            topic=mail, mode=Mode.CAPTURE, tee_queue="c", principal=ADMIN, now=now
        )


def test_a_principal_without_the_right_changes_no_lane(mail: Topic) -> None:
    now = clock.now()
    operator = Principal(actor=Actor.user("boris"), scopes=GRANTS[Role.OPERATOR])
    elsewhere = Principal(
        actor=Actor.key("ci"), scopes=GRANTS[Role.ADMIN], topics=("orders",)
    )

    with pytest.raises(Forbidden):
        lane_mode_and_pause.pause(topic=mail, principal=operator, now=now)
    with pytest.raises(Forbidden):
        lane_mode_and_pause.observe_all(topics=[mail], principal=operator, now=now)
    with pytest.raises(Absent):
        lane_mode_and_pause.set_mode(
            topic=mail, mode=Mode.CAPTURE, principal=elsewhere, now=now
        )

    assert not Lane.objects.get().paused


def test_a_topic_without_a_dead_letter_queue_has_no_lane(now: datetime) -> None:
    topic = brokers.topics_named(names=["told"])["told"]

    with pytest.raises(Refused, match="name its broker and its dead-letter queue"):
        lane_mode_and_pause.set_mode(
            topic=topic, mode=Mode.OBSERVE, principal=ADMIN, now=now
        )


def test_observe_all_adds_missing_lanes_and_changes_none(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    other = topic_on_queues(now, name="post")
    Lane.objects.filter(topic=mail).delete()
    queueless = brokers.topics_named(names=["queueless"])["queueless"]
    topics = [mail, other, queueless]

    numbers = [
        lane_mode_and_pause.observe_all(topics=topics, principal=ADMIN, now=now)
        for _ in "ab"
    ]

    modes = dict(Lane.objects.values_list("topic__name", "mode"))
    assert (numbers, modes) == ([1, 0], {"mail": "observe", "post": "capture"})


# --- observe


def test_observing_removes_nothing_and_counts_as_no_delivery(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    headers = [(b"n", b"v" * 5000)]
    for number in range(12):
        broker.put("mail-dead", b"%d" % number + b"x" * 5000, headers)
    before = broker.contents("mail-dead")

    watching_lane(mail, now, ManualClock()).step()

    lane = Lane.objects.get()
    assert broker.contents("mail-dead") == before
    assert (broker.reads, Poison.objects.count(), lane.depth) == (0, 0, 12)
    assert not any(m.redelivered for m in broker.queues["mail-dead"])
    samples = Sample.objects.order_by("place")
    assert [bytes(sample.start[:1]) for sample in samples][:3] == [b"0", b"1", b"2"]
    assert {len(sample.start) for sample in samples} == {observe_only_lane.SAMPLE_BYTES}
    assert len(bytes(samples[0].headers[1])) == observe_only_lane.SAMPLE_HEADER_BYTES
    assert len(samples) == observe_only_lane.SAMPLES


def test_no_sample_is_read_where_a_peek_changes_the_queue(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.with_(peeks=False)
    broker.put("mail-dead", b"x")

    watching_lane(mail, now, ManualClock()).step()

    assert (Sample.objects.count(), Lane.objects.get().depth) == (0, 1)


def test_samples_follow_the_queue_and_are_deleted_when_it_is_drained(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    timer = ManualClock()
    watch = watching_lane(mail, now, timer)
    broker.put("mail-dead", b"old")
    watch.step()
    broker.queues["mail-dead"].clear()
    broker.put("mail-dead", b"new")

    timer.now += depth_polling.POLL_INTERVAL
    watch.step()
    soon = [bytes(s.start) for s in Sample.objects.all()]
    timer.now += observe_only_lane.SAMPLE_INTERVAL
    watch.step()
    later = [bytes(s.start) for s in Sample.objects.all()]
    draining(mail, now).close()

    assert (soon, later) == ([b"old"], [b"new"])
    assert not Sample.objects.exists()


def test_the_rate_of_an_observed_queue_is_that_of_its_growth(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    timer = ManualClock()
    watch = watching_lane(mail, now, timer)
    rates = []
    for number in (100, 5, 2):
        for _ in range(number):
            broker.put("mail-dead", b"x")
        watch.step()
        rates.append(Lane.objects.get().rate)
        timer.now += depth_polling.POLL_INTERVAL
    timer.now += 60
    watch.step()

    # Earlier letters are no rate. The row has the depth of before the poll.
    assert (rates, Lane.objects.get().rate) == ([0.0, 0.0, 5.0], 0.0)


# --- a running process


def test_another_mode_a_pause_and_other_settings_hold_within_two_seconds(
    broker: Queues, mail: Topic
) -> None:
    broker.put("mail-dead", b"1")
    with serving():
        wait_until(lambda: Lane.objects.get().depth == 1)
        observed = broker.contents("mail-dead")

        lane_mode_and_pause.set_mode(
            topic=mail, mode=Mode.CAPTURE, principal=ADMIN, now=clock.now()
        )
        wait_until(lambda: Poison.objects.count() == 1, seconds=TWO_SECONDS)
        wait_until(lambda: Lane.objects.get().state == "running")

        lane_mode_and_pause.pause(topic=mail, principal=ADMIN, now=clock.now())
        wait_until(lambda: Lane.objects.get().state == "paused", seconds=TWO_SECONDS)
        calls, seen_at = broker.call_count, Lane.objects.get().seen_at
        broker.put("mail-dead", b"2")
        # Its next step: a lane that works would read in it.
        wait_until(lambda: Lane.objects.get().seen_at != seen_at)
        still = (broker.contents("mail-dead"), broker.call_count - calls)

        lane_mode_and_pause.resume(topic=mail, principal=ADMIN, now=clock.now())
        wait_until(lambda: Poison.objects.count() == 2, seconds=TWO_SECONDS)

        Topic.objects.filter(pk=mail.pk).update(dead_letter_queue="other-dead")
        broker.put("other-dead", b"3")
        wait_until(lambda: Poison.objects.count() == 3, seconds=TWO_SECONDS)

    assert observed == [(b"1", ())]
    assert still == ([(b"2", ())], 0)
    assert not broker.readers  # each was closed


def test_a_paused_lane_writes_its_state_every_two_seconds(
    broker: Queues, mail: Topic
) -> None:
    Lane.objects.update(paused=True)
    lane = Lane.objects.possible().get()
    stop, said = threading.Event(), list[float]()

    def now() -> datetime:
        said.append(time.monotonic())
        if len(said) == 3:
            stop.set()
        return clock.now()

    with closing(Locks()) as locks:
        LaneRunner(
            topic_id=mail.pk, row_of=lambda _: lane, locks=locks, stop=stop, clock=now
        ).run()

    assert said[2] - said[0] >= 2 * POLL_INTERVAL
    assert Lane.objects.get().state == "paused"


def test_a_new_topic_gets_its_lane_at_once_and_a_removed_one_loses_it(
    broker: Queues, mail: Topic
) -> None:
    with serving():
        post = topic_on_queues(clock.now(), name="post")
        broker.put("post-dead", b"x")
        wait_until(Poison.objects.exists, seconds=TWO_SECONDS)

        Topic.objects.filter(pk=post.pk).update(dead_letter_queue="")
        wait_until(
            lambda: f"lane-{post.pk}" not in {t.name for t in threading.enumerate()},
            seconds=TWO_SECONDS,
        )


@pytest.fixture
def lock_attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the locks that were asked for since."""
    names, attempt = list[str](), Locks.attempt

    def note(locks: Locks, name: str) -> AbstractContextManager[Lock | None]:
        names.append(name)
        return attempt(locks, name)

    monkeypatch.setattr(Locks, "attempt", note)
    return names


def end_session_of_locks() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'poisonweb lane locks'"
            "   AND datname = current_database()"
        )


def test_all_lanes_start_again_when_the_session_of_their_locks_ends(
    broker: Queues, mail: Topic
) -> None:
    topics = [
        topic_on_queues(clock.now(), name=name) for name in ("post", "fax", "wire")
    ]
    names = [f"lane:{topic.pk}" for topic in topics]
    with serving():
        wait_until(lambda: len(broker.readers) == 3)
        before = list(broker.readers)
        end_session_of_locks()
        wait_until(lambda: not any(reader in broker.readers for reader in before))
        wait_until(lambda: advisory_locks.names_locked(names) == set(names))
        for topic in topics:
            broker.put(topic.dead_letter_queue, b"x")
        wait_until(lambda: Poison.objects.count() == 3)

    assert not broker.readers
    assert advisory_locks.names_locked(names) == set()


def test_a_lane_that_lost_its_lock_to_another_process_stops(
    broker: Queues, mail: Topic, lock_attempts: list[str]
) -> None:
    post = topic_on_queues(clock.now(), name="post")
    with serving(), ExitStack() as theirs:
        wait_until(lambda: broker.readers)
        # The quicker of the two gets it.
        while not lock_of(post, theirs):
            end_session_of_locks()
        wait_until(lambda: not broker.readers)
        broker.put("post-dead", b"x")
        reads = broker.reads
        lock_attempts.clear()
        # It asks for its lock each second, and does nothing when it does not get it.
        wait_until(lambda: lock_attempts.count(f"lane:{post.pk}") == 2)
        still = (broker.reads - reads, Poison.objects.count())
        theirs.close()
        wait_until(lambda: Poison.objects.count() == 1)

    assert still == (0, 0)


def lock_of(topic: Topic, stack: ExitStack) -> Lock | None:
    return stack.enter_context(advisory_locks.attempt(f"lane:{topic.pk}"))


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


def test_a_topic_without_a_queue_gets_the_conventions_with_its_mode(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.convention = "-poison"
    Lane.objects.all().delete()
    Topic.objects.update(dead_letter_queue="")

    for _ in "ab":
        lane_mode_and_pause.set_mode(
            topic=Topic.objects.get(), mode=Mode.CAPTURE, principal=ADMIN, now=now
        )

    named = Entry.objects.get(action="topic.altered")
    assert Topic.objects.get().dead_letter_queue == "mail-poison"
    assert named.detail == {"dead_letter_queue": ["", "mail-poison"]}
    assert Lane.objects.get().mode == "capture"


def test_a_queue_named_meanwhile_is_not_replaced_by_the_conventional_one(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.convention = "-poison"
    stale = Topic.objects.select_related("broker").get()
    stale.dead_letter_queue = ""

    lane_mode_and_pause.set_mode(
        topic=stale, mode=Mode.CAPTURE, principal=ADMIN, now=now
    )

    assert Topic.objects.get().dead_letter_queue == "mail-dead"
    assert not Entry.objects.filter(action="topic.altered").exists()


def test_copies_never_go_to_the_queue_that_the_convention_names(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.convention = "-poison"
    Topic.objects.update(dead_letter_queue="")

    with pytest.raises(Invalid, match="elsewhere"):
        lane_mode_and_pause.set_mode(
            topic=Topic.objects.get(),
            mode=Mode.TEE,
            tee_queue="mail-poison",
            principal=ADMIN,
            now=now,
        )

    assert Topic.objects.get().dead_letter_queue == ""


# --- capture


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


def test_a_slow_postgres_gets_smaller_batches(
    broker: Queues, mail: Topic, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer, sizes, write = ManualClock(), [], services.write

    def slow(
        *, occurrences: Sequence[Occurrence], now: datetime
    ) -> list[CaptureAnswer]:
        sizes.append(len(occurrences))
        timer.now += 3
        return write(occurrences=occurrences, now=now)

    monkeypatch.setattr(services, "write", slow)
    for _ in range(120):
        broker.put("mail-dead", b"x")
    with draining(mail, now, timer) as work:
        work.size.value = 40
        while work.drain_batch(wait=0.0):
            pass

    assert sizes == [40, 20, *[10] * 6]
    assert Poison.objects.count() == 120


@pytest.mark.parametrize("mode", [Mode.CAPTURE, Mode.TEE])
def test_the_visibility_timeout_is_extended_during_a_slow_batch(
    broker: Queues,
    mail: Topic,
    now: datetime,
    mode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.with_(extends=True)
    tee_queue = "copies" if mode is Mode.TEE else ""
    Lane.objects.update(mode=mode.value, tee_queue=tee_queue)
    Topic.objects.filter(pk=mail.pk).update(visibility_timeout=0.3)
    write = services.write

    def until_extended_twice() -> None:
        wait_until(lambda: len(broker.extended) >= 2)

    def slow(
        *, occurrences: Sequence[Occurrence], now: datetime
    ) -> list[CaptureAnswer]:
        if mode is Mode.CAPTURE:
            until_extended_twice()
        return write(occurrences=occurrences, now=now)

    def answer(_: Outbound) -> PublishOutcome:
        until_extended_twice()
        return SENT

    monkeypatch.setattr(services, "write", slow)
    broker.answer = answer
    broker.put("mail-dead", b"x")
    drain_all(mail, now)

    assert set(broker.extended) == {"r1"}
    assert broker.contents("mail-dead") == []


def test_nothing_is_extended_on_a_broker_without_visibility_timeouts(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    Topic.objects.filter(pk=mail.pk).update(visibility_timeout=0.000_001)
    broker.put("mail-dead", b"x")

    drain_all(mail, now)

    assert broker.extended == []


def test_batches_shrink_and_grow_within_their_bounds() -> None:
    size = BatchSize()

    sizes = []
    for seconds in [3.0] * 9 + [1.0] + [0.1] * 9:
        size.adjust(seconds)
        sizes.append(size.value)

    assert sizes[:3] == [250, 125, 62]
    assert sizes[8:11] == [SMALLEST_BATCH, SMALLEST_BATCH, 2 * SMALLEST_BATCH]
    assert sizes[-1] == LARGEST_BATCH


# --- polling


def test_an_idle_lane_polls_less_and_less_often() -> None:
    timer = ManualClock()
    polling = Polling(longest=15.0, timer=timer)
    random.seed(1)

    pauses = []
    for _ in range(6):
        polling.adjust(is_active=False)
        pauses.append(polling.seconds_left())
        assert not polling.is_due()
        timer.now += pauses[-1]
        assert polling.is_due()
    polling.adjust(is_active=True)

    for pause, highest in zip(pauses, [1, 2, 4, 8, 15, 15], strict=True):
        assert 0.75 * highest <= pause <= highest
    assert len(set(pauses)) == 6
    assert (polling.is_due(), polling.seconds_left()) == (True, 0.0)


def test_a_lane_polls_in_intervals_only_where_reads_cost_money(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.with_(polling_interval=15.0)
    Topic.objects.filter(pk=mail.pk).update(options={"maxPollingInterval": "00:00:03"})
    timer = ManualClock()
    with draining(mail, now, timer) as work:
        for _ in range(20):
            work.step()
            timer.now += 1.0
        idle = broker.reads
        broker.put("mail-dead", b"x")
        timer.now += 3.0
        work.step()
        work.step()

    assert 7 <= idle <= 10
    assert broker.reads - idle == 2  # it read a letter, and polled again at once


def test_a_lane_sends_heartbeats_between_two_polls(broker: Queues, mail: Topic) -> None:
    broker.with_(polling_interval=60.0)
    timer, lives = ManualClock(), list[bool]()
    with draining(mail, clock.now(), timer) as work:
        asked_often = asks_in_a_minute(broker, work, timer)
        asked_seldom = asks_in_a_minute(broker, work, timer)
        for _ in range(30):
            Lane.objects.update(seen_at=None, state="away")
            timer.now += depth_polling.POLL_INTERVAL
            work.step()
            lane = Lane.objects.get()
            lives.append(lane.seen_at is not None and lane.state == "running")

    # Each poll makes three calls; between polls there are none.
    looks, fewer = asked_often / 3, asked_seldom / 3
    assert (4 <= looks <= 9, fewer <= 2, all(lives)) == (True, True, True)


def test_an_observed_queue_is_polled_less_and_less_often_too(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    broker.with_(polling_interval=60.0, peeks=False)
    timer = ManualClock()
    watch = watching_lane(mail, now, timer)
    first, then = (asks_in_a_minute(broker, watch, timer) for _ in "ab")

    broker.put("mail-dead", b"x")
    timer.now += 60.0
    watch.step()
    wakened = asks_in_a_minute(broker, watch, timer)

    assert (first >= 5, then <= 2, wakened >= 5) == (True, True, True)
    assert Lane.objects.get().depth == 1


def asks_in_a_minute(broker: Queues, work: LaneWork, timer: ManualClock) -> int:
    """Let a lane work for a minute, and count the calls to its broker."""
    before = broker.call_count
    for _ in range(60):
        timer.now += 1.0
        work.step()
    return broker.call_count - before


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, 15.0), (1, 1.0), ("2.5", 2.5), ("00:01:00", 60.0)]
)
def test_the_longest_interval_is_read_in_seconds_or_as_a_clock(
    value: object, seconds: float
) -> None:
    options = {"maxPollingInterval": value} if value else {}

    assert longest_interval(options, usual=15.0) == seconds


@pytest.mark.parametrize("value", ["soon", 0, -1, True, None, [], "25:99:00", 1e9])
def test_an_invalid_interval_names_its_option(value: object) -> None:
    with pytest.raises(Invalid, match="maxPollingInterval"):
        longest_interval({"maxPollingInterval": value}, usual=15.0)


def test_a_rate_is_of_the_last_minute() -> None:
    timer = ManualClock()
    rate = LaneRate(timer)

    rate.add(5)
    timer.now += 59
    rate.add(2)
    both = rate.per_minute()
    timer.now += 2

    assert (both, rate.per_minute()) == (7.0, 2.0)


# --- deliveries of a broker


def deliver(
    broker: Queues, topic: Topic, now: datetime, total: int, since: str = ""
) -> None:
    broker.delivered = Delivered(total=total, at=now, since=since)
    watching_lane(topic, now, ManualClock()).step()


def counted() -> list[tuple[datetime, int, str]]:
    rows = Counter.objects.order_by("minute")
    return list(rows.values_list("minute", "handled", "source"))


def test_deliveries_of_a_broker_count_once_in_their_minute(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    at = now.replace(second=5, microsecond=0)

    # Each call is a new lane, which finds the last total on the row.
    deliver(broker, mail, at, 100)
    deliver(broker, mail, at + timedelta(seconds=30), 110)
    deliver(broker, mail, at + MINUTE, 130)
    deliver(broker, mail, at + 2 * MINUTE, 130)
    deliver(broker, mail, at + 3 * MINUTE, 137)

    start = at.replace(second=0)
    assert counted() == [
        (start, 30, "broker"),
        (start + 2 * MINUTE, 7, "broker"),
    ]
    row = Counter.objects.first()
    assert row is not None
    assert (row.failed, row.consumer_group, row.topic_id) == (0, "", mail.pk)


def test_a_total_that_fell_or_restarted_counts_nothing(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    at = now.replace(second=5, microsecond=0)

    deliver(broker, mail, at, 100, "monday")
    deliver(broker, mail, at + MINUTE, 40, "monday")  # it fell
    deliver(broker, mail, at + 2 * MINUTE, 90, "tuesday")  # it began again
    deliver(broker, mail, at + 3 * MINUTE, 95, "tuesday")

    assert counted() == [(at.replace(second=0) + 2 * MINUTE, 5, "broker")]


def test_deliveries_of_a_broker_do_not_count_beside_sdk_counters(
    broker: Queues, mail: Topic, now: datetime
) -> None:
    count_up(now, counter(topic="mail", minute=now.isoformat()))

    deliver(broker, mail, now, 100)
    deliver(broker, mail, now + MINUTE, 150)
    deliver(broker, mail, now + timedelta(days=2), 200)
    deliver(broker, mail, now + timedelta(days=2) + MINUTE, 260)

    sources = [(handled, source) for _, handled, source in counted()]
    # Until no SDK counter has come for a day.
    assert sources == [(10, "sdk"), (50, "broker"), (60, "broker")]


# --- the command


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "observe"}, "only observes: set it to capture or tee first"),
        ({"mode": "capture", "paused": True}, "is paused: resume it first"),
    ],
)
def test_the_capture_command_refuses_an_observing_or_paused_lane(
    broker: Queues, mail: Topic, changes: dict[str, object], words: str
) -> None:
    Lane.objects.update(**changes)
    broker.put("mail-dead", b"x")

    with pytest.raises(CommandError, match=words):
        call_command("capture", "mail")

    assert len(broker.contents("mail-dead")) == 1


def test_the_capture_command_drains_a_queue(
    broker: Queues, mail: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    Lane.objects.update(mode=Mode.CAPTURE.value)
    for _ in range(3):
        broker.put("mail-dead", b"x")

    call_command("capture", "mail")

    assert capsys.readouterr().out == "captured 3\n"
    assert Poison.objects.count() == 3
