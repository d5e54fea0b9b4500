"""Automatic skips: when one consumer fails on a message, the others skip it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.brokers.models import Topic
from apps.capture import tasks
from apps.capture.intake import automatic_skips
from apps.capture.intake.services import CaptureStatus
from apps.core import clock
from apps.poison import (
    skip_addition_and_removal,
    skip_expiry_and_pruning,
    skip_list_for_consumers,
)
from apps.poison.models import Failure, Poison, Skip, SkipList, WaitingSkip
from tests.failure_report_builders import capture, failure, poisons
from tests.skip_builders_and_list_mirror import (
    ANNA,
    Mirror,
    added,
    suspected,
    topic_named,
    values,
)
from tests.triage_operation_runner import redriven

pytestmark = pytest.mark.django_db

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


@pytest.fixture
def replaying() -> Topic:
    return topic_named(replays=True)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic_skips, "MOST_A_MINUTE", 3)
    monkeypatch.setattr(automatic_skips, "MOST_ACTIVE", 5)
    monkeypatch.setattr(automatic_skips, "MOST_WAITING", 4)


def reader(topic: Topic, name: str, **marks: int | tuple[int, int]) -> None:
    """Create a position with (processed, persisted) for each publisher."""
    position = BookmarkPosition.objects.create(
        topic=topic, source="sdk", client_name=name, sub_id="s", epoch=1,
        observed_at=skip_time(topic), moved_at=skip_time(topic),
    )  # fmt: skip
    for publisher, seqs in marks.items():
        processed, persisted = seqs if isinstance(seqs, tuple) else (seqs, None)
        Mark.objects.create(
            position=position, publisher=publisher.strip("_"), processed=processed,
            persisted=persisted, bookmark="", settled=((0, processed),),
        )  # fmt: skip


def skip_time(topic: Topic) -> datetime:
    return Skip.objects.filter(topic=topic).earliest("at").at


def test_a_poison_of_a_replaying_topic_is_shared_with_its_group(
    now: datetime, replaying: Topic
) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0", publisher="P", seq=7)

    skip = Skip.objects.get()
    assert values(group="billing") == ["1-0"]
    assert values(group="shipping") == []
    assert (skip.poison, skip.by, skip.is_automatic) == (poison, "system:capture", True)
    assert (skip.expires_at, skip.reason) == (now + 30 * DAY, "exhausted: ValueError")
    assert (skip.publisher, skip.seq, skip.revision) == ("P", 7, 1)


def test_a_skip_lives_as_long_as_its_topic_keeps_a_message(
    now: datetime, replaying: Topic
) -> None:
    Topic.objects.filter(pk=replaying.pk).update(retention_days=4)
    poisons(now, 1, bookmark="1-0")
    skip = Skip.objects.get()
    young, old = now + 2 * DAY, now + 2 * DAY + SECOND

    capture(young, failure(young, bookmark="1-0"))
    unchanged = Skip.objects.get()
    capture(old, failure(old, bookmark="1-0"))
    renewed = Skip.objects.get()

    assert (skip.expires_at, unchanged.revision) == (now + 4 * DAY, skip.revision)
    assert (renewed.expires_at, renewed.revision) == (
        old + 4 * DAY,
        skip.revision + 1,
    )


def test_on_a_queue_nothing_is_skipped_by_itself(now: datetime) -> None:
    poisons(now, 3)

    assert Skip.objects.count() == 0


def test_a_report_that_says_its_topic_replays_marks_the_topic(now: datetime) -> None:
    capture(now, failure(now, bookmark="1-0", replays=True), failure(now))

    assert Topic.objects.get(name="orders").replays
    assert len(values()) == 2


def test_a_batch_makes_its_skips_at_revisions_of_their_own(
    now: datetime, replaying: Topic
) -> None:
    other = topic_named("payments", replays=True)
    members = [failure(now, topic=name) for name in ("payments", "orders") * 10]

    capture(now, *members, *members, failure(now, topic="queue"))

    for topic in (replaying, other):
        skips = Skip.objects.filter(topic=topic).order_by("revision")
        assert [skip.revision for skip in skips] == list(range(1, 11))
        assert SkipList.objects.get(topic=topic).automatic == 10


def test_failing_again_while_the_skip_is_young_changes_nothing(
    now: datetime, replaying: Topic
) -> None:
    for turn in range(3):
        at = now + turn * DAY
        capture(at, failure(at, bookmark="1-0"))
    reader = Mirror()

    late = now + 16 * DAY
    capture(late, failure(late, bookmark="1-0"))
    reader.follow()

    assert reader.revision == 2
    assert [skip.expires_at for skip in reader.skips.values()] == [late + 30 * DAY]


def test_a_skip_of_a_person_is_not_changed_by_a_failure(
    now: datetime, replaying: Topic
) -> None:
    mine = added(now, "1-0", consumer_group="billing", reason="mine")

    capture(now, failure(now, bookmark="1-0"))

    assert Skip.objects.get() == mine
    assert skip_list_for_consumers.list_head(topic="orders").revision == 1


def test_adding_a_skip_replaces_an_automatic_one(
    now: datetime, replaying: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0"))

    added(now, "1-0", consumer_group="billing", reason="for good")

    skip = Skip.objects.get()
    assert (skip.is_automatic, skip.expires_at, skip.by) == (False, None, "user:anna")
    assert SkipList.objects.get(topic=replaying).automatic == 0


def versions() -> dict[str | None, str]:
    """Return the skipped values by handler version."""
    return {s.handler_version: s.value_text for s in Skip.objects.active()}


def test_a_skip_is_for_the_handler_version_that_failed(
    now: datetime, replaying: Topic
) -> None:
    old, new = ({"bookmark": "1-0", "handler_version": v} for v in ("1", "2"))
    capture(now, failure(now, **old), failure(now, **old))
    of_the_old = versions()

    capture(now, failure(now, **new), failure(now, **old))

    assert of_the_old == {"1": "1-0"}
    assert versions() == {"1": "1-0", "2": "1-0"}
    assert SkipList.objects.get(topic=replaying).automatic == 2
    assert Mirror().revision == 2


def test_versions_that_fail_in_one_request_have_a_skip_each(
    now: datetime, replaying: Topic
) -> None:
    members = [
        failure(now, bookmark="1-0", **version)
        for version in ({"handler_version": "1"}, {"handler_version": "2"}, {})
    ]

    capture(now, *members)

    assert versions() == {"1": "1-0", "2": "1-0", None: "1-0"}


def test_a_skip_for_all_versions_needs_none_beside_it(
    now: datetime, replaying: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0"))

    capture(now, failure(now, bookmark="1-0", handler_version="2"))

    assert versions() == {None: "1-0"}


def test_a_skip_for_all_versions_replaces_an_automatic_one(
    now: datetime, replaying: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0", handler_version="1"))
    before, reader = Skip.objects.get(), Mirror()

    added(now, "1-0", consumer_group="billing", reason="the data is bad")
    reader.follow()
    capture(now, failure(now, bookmark="1-0", handler_version="2"))

    skip = Skip.objects.get()
    assert (skip.pk, skip.handler_version, skip.is_automatic) == (
        before.pk,
        None,
        False,
    )
    assert reader.skips[before.pk].handler_version is None
    assert SkipList.objects.get(topic=replaying).automatic == 0


def test_a_skip_for_one_version_leaves_the_others_as_they_are(
    now: datetime, replaying: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0", handler_version="1"))

    added(now, "1-0", consumer_group="billing", handler_version="2")

    assert versions() == {"1": "1-0", "2": "1-0"}


def test_what_is_removed_and_fails_again_is_skipped_again(
    now: datetime, replaying: Topic
) -> None:
    poisons(now, 1, bookmark="1-0")
    skip_addition_and_removal.remove(
        skip_id=Skip.objects.get().pk, reason="", principal=ANNA, now=now
    )
    before = values()

    (answer,) = capture(now, failure(now, bookmark="1-0"))

    assert (answer.status, before, values()) == (CaptureStatus.UPDATED, [], ["1-0"])


def test_a_redrive_that_fails_is_skipped_and_the_next_one_is_not(
    now: datetime, replaying: Topic
) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    header = redriven(poison, now)

    capture(now, failure(now, bookmark="9-0", redrive=header))

    by_value = {skip.value: skip for skip in Mirror().skips.values()}
    assert (by_value[b"1-0"].redrive, by_value[b"1-0"].poison) == (None, poison.pk)
    assert f"{by_value[b'9-0'].redrive}" == header.partition(".")[0]
    assert by_value[b"9-0"].poison == poison.pk


def test_failures_beyond_the_limits_are_captured_and_counted_as_withheld(
    now: datetime, replaying: Topic, few: None
) -> None:
    for number in (2, 2):
        capture(now, *(failure(now) for _ in range(number)))
    within_the_minute = SkipList.objects.get(topic=replaying)
    later = now + timedelta(minutes=1)
    capture(later, *(failure(later) for _ in range(6)))

    full = SkipList.objects.get(topic=replaying)
    assert (within_the_minute.automatic, within_the_minute.withheld) == (3, 0)
    assert (full.automatic, full.withheld, full.withheld_at) == (5, 1, later)
    assert (Skip.objects.count(), Poison.objects.count()) == (5, 10)
    assert WaitingSkip.objects.count() == 4
    assert full.revision == 5


def test_a_waiting_skip_is_made_when_there_is_room(
    now: datetime, replaying: Topic, few: None
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
    assert SkipList.objects.get(topic=replaying).made == 2


def test_the_task_that_ends_skips_makes_those_that_waited(
    replaying: Topic, few: None
) -> None:
    before = clock.now() - timedelta(minutes=2)  # the task asks the clock
    capture(before, *(failure(before) for _ in range(5)))

    tasks.end_skips()

    assert (Skip.objects.count(), WaitingSkip.objects.count()) == (5, 0)


def test_skips_for_crashes_are_made_before_others(
    now: datetime, replaying: Topic, few: None
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
    now: datetime, replaying: Topic, few: None
) -> None:
    capture(now, *(failure(now, cause="crash", bookmark=f"c-{n}") for n in range(5)))

    later = now + timedelta(minutes=1)
    capture(later, *(failure(later, bookmark=f"e-{n}") for n in range(3)))
    between = values()
    automatic_skips.make_waiting_skips(now=later)

    assert between == ["c-0", "c-1", "c-2"]
    assert values() == [*between, "c-3", "c-4"]


def test_a_waiting_skip_is_not_made_when_doubted_or_made_by_hand(
    now: datetime, replaying: Topic, few: None
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
    now: datetime, replaying: Topic, few: None
) -> None:
    Topic.objects.filter(pk=replaying.pk).update(retention_days=2)
    capture(now, *(failure(now) for _ in range(4)))

    automatic_skips.make_waiting_skips(now=now + 2 * DAY + SECOND)

    assert (Skip.objects.count(), WaitingSkip.objects.count()) == (3, 0)


def test_a_message_that_fails_again_waits_once(
    now: datetime, replaying: Topic, few: None
) -> None:
    for _ in range(3):
        capture(now, *(failure(now, bookmark=f"{n}") for n in range(5)))

    assert WaitingSkip.objects.count() == 2
    assert SkipList.objects.get(topic=replaying).withheld == 0


def test_a_skip_that_ends_makes_room(
    now: datetime, replaying: Topic, few: None
) -> None:
    for minute in range(2):
        at = now + timedelta(minutes=minute)
        capture(at, *(failure(at) for _ in range(3)))
    month = now + 31 * DAY
    skip_expiry_and_pruning.expire(now=month)

    capture(month, *(failure(month) for _ in range(2)))

    assert SkipList.objects.get(topic=replaying).automatic == 2


def test_a_suspected_failure_is_captured_without_a_skip(
    now: datetime, replaying: Topic
) -> None:
    (poison,) = poisons(now, 1, suspected=True)

    assert (poison.suspected, Failure.objects.get().suspected) == (True, True)
    assert (values(), len(suspected())) == ([], 1)


def test_a_suspected_failure_is_not_shared_beside_one_that_is(
    now: datetime, replaying: Topic
) -> None:
    capture(
        now, failure(now, bookmark="1-0", suspected=True), failure(now, bookmark="2-0")
    )

    assert (values(), suspected()) == (["2-0"], ["1-0"])


def test_the_same_report_without_suspicion_shares_the_skip(
    now: datetime, replaying: Topic
) -> None:
    report = failure(now, bookmark="1-0")
    first = capture(now, {**report, "suspected": True})
    again = capture(now, {**report, "suspected": True})

    cleared = capture(now + SECOND, report, report)
    after = capture(now + SECOND, report)

    statuses = [answer.status for answer in (*first, *again, *cleared, *after)]
    assert statuses == ["created", "duplicate", "updated", "duplicate", "duplicate"]
    poison = Poison.objects.get()
    assert (poison.suspected, poison.failures) == (False, 1)
    assert Failure.objects.get().suspected is False
    assert values() == ["1-0"]


def test_suspicion_and_its_end_in_one_request_are_one_failure(
    now: datetime, replaying: Topic
) -> None:
    report = failure(now, bookmark="1-0")

    answers = capture(now, {**report, "suspected": True}, report)

    assert [answer.status for answer in answers] == ["created", "duplicate"]
    assert Poison.objects.get().suspected is False
    assert values() == ["1-0"]


def test_another_consumer_that_fails_with_it_ends_the_suspicion(
    now: datetime, replaying: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0", suspected=True))
    capture(now, failure(now, bookmark="1-0", suspected=True))
    still = Poison.objects.get().suspected

    capture(now, failure(now, bookmark="1-0", client_name="billing-2"))
    capture(now, failure(now, bookmark="1-0", suspected=True))

    assert (still, Poison.objects.get().suspected) == (True, False)
    assert values() == ["1-0"]


def test_a_skip_ends_once_every_known_position_has_passed_it(
    now: datetime, replaying: Topic
) -> None:
    for seq in (5, 6, 7):
        capture(now, failure(now, bookmark=f"P|{seq}|", publisher="P", seq=seq))
    capture(now, failure(now, bookmark="Q|1|", publisher="Q", seq=1))
    capture(now, failure(now, bookmark="somewhere"))
    reader(replaying, "billing-1", P=9, Q=9)
    reader(replaying, "billing-2", P=(9, 6))

    early = automatic_skips.end_passed(now=now + DAY - SECOND)
    ended = automatic_skips.end_passed(now=now + DAY + SECOND)

    assert (early, ended) == (0, 2)
    assert values() == ["P|7|", "Q|1|", "somewhere"]
    assert {s.because for s in Skip.objects.exclude(because="")} == {"passed"}


def test_without_a_known_position_no_skip_is_passed(
    now: datetime, replaying: Topic
) -> None:
    capture(now, failure(now, bookmark="P|5|", publisher="P", seq=5))

    assert automatic_skips.end_passed(now=now + 2 * DAY) == 0
