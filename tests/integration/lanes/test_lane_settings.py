"""Settings of a lane take effect within two seconds, and are audited."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from datetime import datetime

import pytest

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.lanes import lane_mode_and_pause
from apps.capture.lanes.depth_polling import POLL_INTERVAL
from apps.capture.lanes.runner import LaneRunner
from apps.capture.models import Lane, Mode
from apps.core import clock
from apps.core.actor import Actor
from apps.core.advisory_locks import Locks
from apps.core.errors import Absent, Forbidden, Invalid, Refused
from apps.dashboard.presentation.audit_entry_changes import changes
from apps.poison.models import Poison
from apps.team.rights import GRANTS, Principal, Role
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import serving, topic_on_queues
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ADMIN = Principal(actor=Actor.user("ada"), scopes=GRANTS[Role.ADMIN])
# What is promised, where nothing else works beside it.
TWO_SECONDS = 2.0 if os.environ.get("SOAK") else 60.0


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
