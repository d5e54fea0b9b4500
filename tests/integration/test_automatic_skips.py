"""Automatic skips: when one consumer fails on a message, the others skip it."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apps.brokers.models import Topic
from apps.capture.intake.services import CaptureStatus
from apps.poison import skip_addition_and_removal, skip_list_for_consumers
from apps.poison.models import Skip, SkipList
from tests.failure_report_builders import capture, failure, poisons
from tests.skip_builders_and_list_mirror import ANNA, Mirror, added, topic_named, values
from tests.triage_operation_runner import redriven

pytestmark = pytest.mark.django_db

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def test_a_poison_of_a_replaying_topic_is_shared_with_its_group(
    now: datetime, replaying_topic: Topic
) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0", publisher="P", seq=7)

    skip = Skip.objects.get()
    assert values(group="billing") == ["1-0"]
    assert values(group="shipping") == []
    assert (skip.poison, skip.by, skip.is_automatic) == (poison, "system:capture", True)
    assert (skip.expires_at, skip.reason) == (now + 30 * DAY, "exhausted: ValueError")
    assert (skip.publisher, skip.seq, skip.revision) == ("P", 7, 1)


def test_a_skip_lives_as_long_as_its_topic_keeps_a_message(
    now: datetime, replaying_topic: Topic
) -> None:
    Topic.objects.filter(pk=replaying_topic.pk).update(retention_days=4)
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
    now: datetime, replaying_topic: Topic
) -> None:
    other = topic_named("payments", replays=True)
    members = [failure(now, topic=name) for name in ("payments", "orders") * 10]

    capture(now, *members, *members, failure(now, topic="queue"))

    for topic in (replaying_topic, other):
        skips = Skip.objects.filter(topic=topic).order_by("revision")
        assert [skip.revision for skip in skips] == list(range(1, 11))
        assert SkipList.objects.get(topic=topic).automatic == 10


def test_failing_again_while_the_skip_is_young_changes_nothing(
    now: datetime, replaying_topic: Topic
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
    now: datetime, replaying_topic: Topic
) -> None:
    mine = added(now, "1-0", consumer_group="billing", reason="mine")

    capture(now, failure(now, bookmark="1-0"))

    assert Skip.objects.get() == mine
    assert skip_list_for_consumers.list_head(topic="orders").revision == 1


def test_adding_a_skip_replaces_an_automatic_one(
    now: datetime, replaying_topic: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0"))

    added(now, "1-0", consumer_group="billing", reason="for good")

    skip = Skip.objects.get()
    assert (skip.is_automatic, skip.expires_at, skip.by) == (False, None, "user:anna")
    assert SkipList.objects.get(topic=replaying_topic).automatic == 0


def versions() -> dict[str | None, str]:
    """Return the skipped values by handler version."""
    return {s.handler_version: s.value_text for s in Skip.objects.active()}


def test_a_skip_is_for_the_handler_version_that_failed(
    now: datetime, replaying_topic: Topic
) -> None:
    old, new = ({"bookmark": "1-0", "handler_version": v} for v in ("1", "2"))
    capture(now, failure(now, **old), failure(now, **old))
    of_the_old = versions()

    capture(now, failure(now, **new), failure(now, **old))

    assert of_the_old == {"1": "1-0"}
    assert versions() == {"1": "1-0", "2": "1-0"}
    assert SkipList.objects.get(topic=replaying_topic).automatic == 2
    assert Mirror().revision == 2


def test_versions_that_fail_in_one_request_have_a_skip_each(
    now: datetime, replaying_topic: Topic
) -> None:
    members = [
        failure(now, bookmark="1-0", **version)
        for version in ({"handler_version": "1"}, {"handler_version": "2"}, {})
    ]

    capture(now, *members)

    assert versions() == {"1": "1-0", "2": "1-0", None: "1-0"}


def test_a_skip_for_all_versions_needs_none_beside_it(
    now: datetime, replaying_topic: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0"))

    capture(now, failure(now, bookmark="1-0", handler_version="2"))

    assert versions() == {None: "1-0"}


def test_a_skip_for_all_versions_replaces_an_automatic_one(
    now: datetime, replaying_topic: Topic
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
    assert SkipList.objects.get(topic=replaying_topic).automatic == 0


def test_a_skip_for_one_version_leaves_the_others_as_they_are(
    now: datetime, replaying_topic: Topic
) -> None:
    capture(now, failure(now, bookmark="1-0", handler_version="1"))

    added(now, "1-0", consumer_group="billing", handler_version="2")

    assert versions() == {"1": "1-0", "2": "1-0"}


def test_what_is_removed_and_fails_again_is_skipped_again(
    now: datetime, replaying_topic: Topic
) -> None:
    poisons(now, 1, bookmark="1-0")
    skip_addition_and_removal.remove(
        skip_id=Skip.objects.get().pk, reason="", principal=ANNA, now=now
    )
    before = values()

    (answer,) = capture(now, failure(now, bookmark="1-0"))

    assert (answer.status, before, values()) == (CaptureStatus.UPDATED, [], ["1-0"])


def test_a_redrive_that_fails_is_skipped_and_the_next_one_is_not(
    now: datetime, replaying_topic: Topic
) -> None:
    (poison,) = poisons(now, 1, bookmark="1-0")
    header = redriven(poison, now)

    capture(now, failure(now, bookmark="9-0", redrive=header))

    by_value = {skip.value: skip for skip in Mirror().skips.values()}
    assert (by_value[b"1-0"].redrive, by_value[b"1-0"].poison) == (None, poison.pk)
    assert f"{by_value[b'9-0'].redrive}" == header.partition(".")[0]
    assert by_value[b"9-0"].poison == poison.pk
