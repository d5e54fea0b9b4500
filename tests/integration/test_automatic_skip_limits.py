"""Failures beyond the limits of automatic skips wait until there is room."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.brokers.models import Topic
from apps.capture import tasks
from apps.capture.intake import automatic_skips
from apps.core import clock
from apps.poison import skip_expiry_and_pruning
from apps.poison.models import Poison, Skip, SkipList, WaitingSkip
from tests.failure_report_builders import capture, failure
from tests.skip_builders_and_list_mirror import Mirror, added, values

pytestmark = pytest.mark.django_db

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic_skips, "MOST_A_MINUTE", 3)
    monkeypatch.setattr(automatic_skips, "MOST_ACTIVE", 5)
    monkeypatch.setattr(automatic_skips, "MOST_WAITING", 4)


def test_failures_beyond_the_limits_are_captured_and_counted_as_withheld(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    for number in (2, 2):
        capture(now, *(failure(now) for _ in range(number)))
    within_the_minute = SkipList.objects.get(topic=replaying_topic)
    later = now + timedelta(minutes=1)
    capture(later, *(failure(later) for _ in range(6)))

    full = SkipList.objects.get(topic=replaying_topic)
    assert (within_the_minute.automatic, within_the_minute.withheld) == (3, 0)
    assert (full.automatic, full.withheld, full.withheld_at) == (5, 1, later)
    assert (Skip.objects.count(), Poison.objects.count()) == (5, 10)
    assert WaitingSkip.objects.count() == 4
    assert full.revision == 5


def test_a_waiting_skip_is_made_when_there_is_room(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    failures = [
        failure(now, bookmark=f"{n}-0", publisher="P", seq=n, handler_version="1")
        for n in range(5)
    ]
    capture(now, *failures)
    reader = Mirror()
    too_soon = automatic_skips.make_waiting_skips(now=now)

    later = now + timedelta(minutes=1)
    number = automatic_skips.make_waiting_skips(now=later)
    again = automatic_skips.make_waiting_skips(now=later + timedelta(minutes=1))
    reader.catch_up()

    assert (too_soon, number, again) == (0, 2, 0)
    assert values() == [f"{n}-0" for n in range(5)]
    assert len(reader.skips) == 5
    last = Skip.objects.latest("pk")
    assert (last.publisher, last.seq, last.handler_version) == ("P", 4, "1")
    assert (last.reason, last.by) == ("exhausted: ValueError", "system:capture")
    assert (last.poison, last.at) == (Poison.objects.get(bookmark=b"4-0"), later)
    assert WaitingSkip.objects.count() == 0
    assert SkipList.objects.get(topic=replaying_topic).made == 2


def test_the_task_that_ends_skips_makes_those_that_waited(
    replaying_topic: Topic, few: None
) -> None:
    before = clock.now() - timedelta(minutes=2)  # the task asks the clock
    capture(before, *(failure(before) for _ in range(5)))

    tasks.end_skips()

    assert (Skip.objects.count(), WaitingSkip.objects.count()) == (5, 0)


def test_skips_for_crashes_are_made_before_others(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    causes = ["fatal", "expired", "exhausted", "crash", "hang", "crash"]
    capture(
        now, *(failure(now, bookmark=f"{n}", cause=c) for n, c in enumerate(causes))
    )
    at_once = values()
    capture(now, failure(now, bookmark="7", cause="crash"))

    later = now + timedelta(minutes=1)
    automatic_skips.make_waiting_skips(now=later)

    assert at_once == ["3", "4", "5"]
    assert set(values()) == {"3", "4", "5", "7", "0"}


def test_new_failures_leave_room_for_waiting_crashes(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    capture(now, *(failure(now, cause="crash", bookmark=f"c-{n}") for n in range(5)))

    later = now + timedelta(minutes=1)
    capture(later, *(failure(later, bookmark=f"e-{n}") for n in range(3)))
    between = values()
    automatic_skips.make_waiting_skips(now=later)

    assert between == ["c-0", "c-1", "c-2"]
    assert values() == [*between, "c-3", "c-4"]


def test_a_waiting_skip_is_not_made_when_doubted_or_made_by_hand(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    capture(now, *(failure(now, bookmark=f"{n}") for n in range(5)))
    Poison.objects.filter(bookmark=b"3").update(suspected=True)
    mine = added(now, "4", consumer_group="billing", reason="mine")

    number = automatic_skips.make_waiting_skips(now=now + timedelta(minutes=1))

    assert number == 0
    assert values() == ["0", "1", "2", "4"]
    assert Skip.objects.get(pk=mine.pk).revision == mine.revision
    assert WaitingSkip.objects.count() == 0


def test_a_waiting_skip_is_deleted_after_the_retention_of_its_topic(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    Topic.objects.filter(pk=replaying_topic.pk).update(retention_days=2)
    capture(now, *(failure(now) for _ in range(4)))

    automatic_skips.make_waiting_skips(now=now + 2 * DAY + SECOND)

    assert (Skip.objects.count(), WaitingSkip.objects.count()) == (3, 0)


def test_a_message_that_fails_again_waits_once(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    for _ in range(3):
        capture(now, *(failure(now, bookmark=f"{n}") for n in range(5)))

    assert WaitingSkip.objects.count() == 2
    assert SkipList.objects.get(topic=replaying_topic).withheld == 0


def test_a_skip_that_ends_makes_room(
    now: datetime, replaying_topic: Topic, few: None
) -> None:
    for minute in range(2):
        at = now + timedelta(minutes=minute)
        capture(at, *(failure(at) for _ in range(3)))
    month = now + 31 * DAY
    skip_expiry_and_pruning.expire(now=month)

    capture(month, *(failure(month) for _ in range(2)))

    assert SkipList.objects.get(topic=replaying_topic).automatic == 2
