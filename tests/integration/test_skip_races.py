"""The skip list under many writers: a reader that follows it misses nothing."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction

from apps.poison import (
    skip_addition_and_removal,
    skip_counts,
    skip_expiry_and_pruning,
    skip_list_for_consumers,
)
from apps.poison.models import Skip, StoreEpoch
from poisonguard.contract import AppliedSkip
from tests.failure_report_builders import capture, failure
from tests.postgres_connection_limit_and_lock_waits import waits_for_a_lock
from tests.races import on_another_connection, together
from tests.skip_builders_and_list_mirror import (
    ANNA,
    Mirror,
    added,
    changes_after,
    topic_named,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
TOPICS = ("orders", "payments")


def active(topic: str) -> set[int]:
    rows = Skip.objects.active().filter(topic__name=topic)
    return set(rows.values_list("pk", flat=True))


def change_something(dice: random.Random, now: datetime) -> None:
    """Add or renew a skip, let messages fail, expire skips, or remove one."""
    topic = topic_named(dice.choice(TOPICS))
    mark = f"{dice.randrange(40)}-0"
    act = dice.randrange(4)
    if act == 0:
        added(now, mark, topic=topic, expires_at=now + dice.choice([1, 9]) * DAY)
    elif act == 1:
        names = dice.sample(TOPICS, k=2)
        members = [failure(now, topic=name, bookmark=mark) for name in names]
        capture(now, *members)
    elif act == 2:
        skip_expiry_and_pruning.expire(now=now + 2 * DAY)
    else:
        for skip in Skip.objects.active().filter(topic=topic).order_by("?")[:1]:
            skip_addition_and_removal.remove(
                skip_id=skip.pk, reason="", principal=ANNA, now=now
            )


def test_readers_that_begin_at_any_moment_end_with_the_same_list(
    now: datetime,
) -> None:
    for name in TOPICS:
        topic_named(name, replays=True)
    underway = threading.Barrier(9)
    mirrors: list[Mirror] = []

    def write(turn: int) -> None:
        dice = random.Random(turn)
        for number in range(25):
            change_something(dice, now)
            if number == 5:
                underway.wait()

    def read(turn: int) -> None:
        underway.wait()
        mirror = Mirror(TOPICS[turn % 2])
        mirrors.append(mirror)
        for _ in range(60):
            mirror.follow()

    together(9, lambda turn: write(turn) if turn < 6 else read(turn))

    for mirror in mirrors:
        mirror.catch_up()
        assert mirror.ids == active(mirror.topic)
        assert (
            mirror.revision
            == skip_list_for_consumers.list_head(topic=mirror.topic).revision
        )


def test_a_revision_waits_for_the_commit_of_the_one_before(now: datetime) -> None:
    topic_named()
    with ThreadPoolExecutor() as pool, transaction.atomic():
        added(now, "slow")
        fast = pool.submit(on_another_connection, lambda: added(now, "fast"))
        wait_until(lambda: fast.done() or waits_for_a_lock())
        overtaken = fast.done()

    changes = changes_after(0)
    assert [(t.revision, t.value) for t in changes] == [(1, b"slow"), (2, b"fast")]
    assert not overtaken
    assert fast.result().revision == 2


def test_counting_while_the_list_changes_never_deadlocks(now: datetime) -> None:
    topic_named(replays=True)
    marks = [f"{number}-0" for number in range(20)]
    capture(now, *(failure(now, bookmark=mark) for mark in marks))
    ids = list(Skip.objects.values_list("pk", flat=True))
    later = now + 16 * DAY

    def write(turn: int) -> None:
        for _ in range(10):
            if turn % 2:
                order = marks if turn == 1 else marks[::-1]
                capture(later, *(failure(later, bookmark=mark) for mark in order))
            else:
                count_all(ids if turn else ids[::-1], later)

    together(4, write)

    assert set(Skip.objects.values_list("applied", flat=True)) == {20}


def count_all(ids: list[int], now: datetime) -> None:
    reports = [
        AppliedSkip(
            skip=skip,
            consumer_group="billing",
            client_name="billing-1",
            count=1,
            last_at=now,
            report=None,
        )
        for skip in ids
    ]
    skip_counts.count_applied(reports=reports, principal=ANNA, now=now)


def test_many_that_add_the_same_skip_make_one(now: datetime) -> None:
    topic_named()

    def write(_: int) -> None:
        added(now, "1-0")

    together(6, write)

    assert Skip.objects.get().revision == 6


def test_a_restored_dump_has_another_epoch() -> None:
    before = [skip_list_for_consumers.list_head(topic=name).epoch for name in TOPICS]
    (row,) = StoreEpoch.objects.values()
    StoreEpoch.objects.all().delete()

    StoreEpoch.objects.create(**row)

    after = {skip_list_for_consumers.list_head(topic=name).epoch for name in TOPICS}
    assert len(set(before)) == len(after) == 1
    assert after != set(before)


def test_the_same_data_in_another_database_has_another_epoch() -> None:
    mine = skip_list_for_consumers.list_head(topic="orders").epoch
    template = connection.settings_dict["NAME"]
    connection.close()

    theirs = epoch_of_a_copy(template)

    assert len(theirs) == len(mine)
    assert theirs != mine


def epoch_of_a_copy(template: str) -> str:
    """Copy the database, file by file, and return the epoch of the copy."""
    outside = connection.copy()
    outside.settings_dict = {**outside.settings_dict, "NAME": "postgres"}
    copy = connection.copy()
    copy.settings_dict = {**copy.settings_dict, "NAME": f"{template}_restored"}
    try:
        with outside.cursor() as cursor:
            cursor.execute(
                f'CREATE DATABASE "{template}_restored" TEMPLATE "{template}"'
            )
        with copy.cursor() as cursor:
            cursor.execute(skip_list_for_consumers.HEADS, {"topics": ["orders"]})
            return str(cursor.fetchone()[1])
    finally:
        copy.close()
        with outside.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{template}_restored"')
        outside.close()
