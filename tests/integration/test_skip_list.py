"""The skip list: its revisions, and what readers and the counts of consumers get."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.poison import (
    skip_addition_and_removal,
    skip_counts,
    skip_expiry_and_pruning,
    skip_list_for_consumers,
)
from apps.poison.models import Skip, SkipCount, SkipList
from poisonguard.contract import AppliedSkip
from tests.failure_report_builders import poisons
from tests.skip_builders_and_list_mirror import (
    ANNA,
    Mirror,
    added,
    changes_after,
    principal_of,
    topic_named,
    values,
)

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def test_each_change_takes_the_next_revision_of_its_topic(now: datetime) -> None:
    first, second = added(now, "1-0"), added(now, "2-0")
    other = added(now, "1-0", topic=topic_named("payments"))
    removed = skip_addition_and_removal.remove(
        skip_id=first.pk, reason="", principal=ANNA, now=now
    )

    assert [first.revision, second.revision, other.revision] == [1, 2, 1]
    assert removed.removed_revision == 3
    assert skip_list_for_consumers.list_head(topic="orders").revision == 3


def test_a_reader_gets_the_changes_after_its_snapshot(now: datetime) -> None:
    removed, stays = added(now, "1-0"), added(now, "2-0")
    reader = Mirror()

    skip_addition_and_removal.remove(
        skip_id=removed.pk, reason="", principal=ANNA, now=now
    )
    new = added(now, "3-0")
    reader.follow()

    assert reader.ids == {stays.pk, new.pk}
    assert reader.follow() == 0


def test_a_changed_skip_is_listed_once_as_it_is_now(now: datetime) -> None:
    skip = added(now, "1-0", reason="at first")
    added(now, "1-0", reason="and again", expires_at=now + DAY)
    before_it_was_there = changes_after(0)
    skip_addition_and_removal.remove(
        skip_id=skip.pk, reason="", principal=ANNA, now=now
    )
    after_its_end = changes_after(0)

    assert [(t.revision, t.reason, t.because) for t in before_it_was_there] == [
        (2, "and again", "")
    ]
    assert [(t.id, t.revision, t.because) for t in after_its_end] == [
        (skip.pk, 3, "removed")
    ]


def test_an_unknown_topic_has_an_empty_list_and_is_not_created() -> None:
    snapshot = skip_list_for_consumers.snapshot(
        topic="/never heard of", consumer_group=None
    )

    assert (snapshot.revision, snapshot.skips, len(snapshot.epoch)) == (0, (), 16)
    assert SkipList.objects.count() == 0


def test_a_group_gets_its_own_skips_and_those_for_all_groups(now: datetime) -> None:
    added(now, "mine", consumer_group="billing")
    added(now, "theirs", consumer_group="shipping")
    added(now, "all", consumer_group=None)

    assert values(group="billing") == ["mine", "all"]
    assert values(group=None) == ["mine", "theirs", "all"]


def test_any_character_and_any_length_of_a_bookmark_comes_back_as_it_was(
    now: datetime,
) -> None:
    texts = ["a\0b", "\ud800", "b" * 100_000, "/sample/bookmark Store%"]

    for text in texts:
        added(now, text)

    skips = skip_list_for_consumers.snapshot(topic="orders", consumer_group=None).skips
    assert [skip.matcher.wire_value for skip in skips] == texts


def test_expiry_is_a_revision_with_its_reason(now: datetime) -> None:
    skips = [added(now, f"{n}-0", expires_at=now + DAY) for n in range(3)]
    added(now, "for good")
    reader = Mirror()

    early = skip_expiry_and_pruning.expire(now=now + DAY - timedelta(seconds=1))
    ended = skip_expiry_and_pruning.expire(now=now + DAY)
    changes = changes_after(reader.revision)

    assert (early, ended, skip_expiry_and_pruning.expire(now=now + DAY)) == (0, 3, 0)
    assert [(t.id, t.revision, t.because) for t in changes] == [
        (skip.pk, 5 + place, "expired") for place, skip in enumerate(skips)
    ]
    assert values() == ["for good"]


def test_pruning_raises_the_floor_and_keeps_skips_of_people(
    now: datetime,
) -> None:
    topic = topic_named(replays=True)
    poisons(now, 2)
    mine = added(now, "by hand")
    skip_addition_and_removal.remove(
        skip_id=mine.pk, reason="", principal=ANNA, now=now
    )
    month = timedelta(days=31)
    skip_expiry_and_pruning.expire(now=now + month)

    early = skip_expiry_and_pruning.prune(now=now + month)
    pruned = skip_expiry_and_pruning.prune(now=now + 2 * month)

    assert (early, pruned) == (0, 2)
    assert SkipList.objects.get(topic=topic).floor == 6
    assert list(Skip.objects.values_list("pk", flat=True)) == [mine.pk]


def test_applied_skips_are_added_up_and_a_report_counts_once(
    now: datetime,
) -> None:
    skip, other = added(now, "1-0"), added(now, "2-0", topic=topic_named("payments"))

    def report(skip: int, count: int, report: uuid.UUID | None = None) -> AppliedSkip:
        return AppliedSkip(
            skip=skip,
            consumer_group="billing",
            client_name="billing-1",
            count=count,
            last_at=now + DAY,
            report=report,
        )

    once = report(skip.pk, 2, uuid.uuid4())
    reports = [once, once, report(skip.pk, 3), report(skip.pk, 0)]
    reports += [report(other.pk, 5), report(10**12, 1)]
    answers = skip_counts.count_applied(
        reports=reports, principal=principal_of("orders"), now=now
    )
    again = skip_counts.count_applied(
        reports=reports[:1], principal=principal_of("orders"), now=now
    )

    skip.refresh_from_db()
    other.refresh_from_db()
    assert answers == [True, True, True, True, False, False]
    assert again == [True]
    assert (skip.applied, skip.last_applied_at, other.applied) == (5, now, 0)
    assert SkipCount.objects.count() == 1


def test_history_keeps_what_has_ended_newest_first(now: datetime) -> None:
    first, second = added(now, "1-0"), added(now, "2-0")
    skip_addition_and_removal.remove(
        skip_id=second.pk, reason="", principal=ANNA, now=now
    )

    rows = list(Skip.objects.filter(topic=topic_named()).recent_first())

    assert rows == [second, first]
    assert [row.is_active for row in rows] == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "offset"},
        {"removed_revision": 9},
        {"because": "removed"},
        {"removed_revision": 1, "because": "removed"},
        {"is_automatic": True},
        {"applied": 1},
    ],
)
def test_an_impossible_skip_is_refused_by_the_database(
    now: datetime, change: dict[str, object]
) -> None:
    skip = added(now)

    with pytest.raises(IntegrityError), transaction.atomic():
        Skip.objects.filter(pk=skip.pk).update(**change)
