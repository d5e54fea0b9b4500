"""Settling: positions never move back, in any order, and only by their holder."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from apps.bookmarks import services as bookmarks
from apps.bookmarks.bookmark_parsing import BookmarkPlace, place_of
from apps.bookmarks.consumer_request_parsing import MOST_RUNS
from apps.bookmarks.models import BookmarkPosition, Mark, Sample
from apps.bookmarks.services import position_settling, watermark_samples
from apps.bookmarks.services.position_settling import SettleStatus
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Forbidden
from apps.core.schema_changes import migrate
from apps.team.rights import Principal, Scope
from tests.position_opening_and_settling import (
    opened,
    settle,
    statuses,
    told_by_broker,
    update,
)

EU = Principal(
    actor=Actor.key("eu"),
    scopes=frozenset({Scope.POSITIONS_WRITE}),
    topics=("orders.eu",),
)
AMPS = "13948331409633568391"


def test_a_consumer_resumes_where_it_had_settled_everything(
    db: None, now: datetime
) -> None:
    epoch = opened(now).epoch
    settle(now, update(epoch, (0, 100), publisher=AMPS, bookmark=f"{AMPS}|100|"))
    settle(now, update(epoch, (151, 200), publisher=AMPS, received=240))

    (position,) = opened(now).positions

    (mark,) = position.marks.all()
    assert (mark.publisher, mark.bookmark) == (AMPS, f"{AMPS}|100|")
    assert (mark.processed, mark.ahead, mark.received) == (100, ((151, 200),), 240)
    assert (mark.resume_after, mark.persisted) == (100, None)


def test_it_resumes_at_the_lesser_of_processed_and_persisted(
    db: None, now: datetime
) -> None:
    epoch = opened(now).epoch
    settle(
        now,
        update(epoch, (0, 100), publisher="a", persisted=40),
        update(epoch, (0, 50), publisher="b", persisted=90),
        update(epoch, (0, 70), publisher="a", persisted=30),
    )

    (position,) = opened(now).positions

    resumes = {mark.publisher: mark.resume_after for mark in position.marks.all()}
    assert resumes == {"a": 40, "b": 50}


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40, unique=True), st.data())
@pytest.mark.django_db
def test_any_order_in_any_batches_gives_the_same_mark(
    seqs: list[int], data: st.DataObject
) -> None:
    now = datetime.fromisoformat("2026-11-20T12:00:00Z")
    sparse = sorted(seqs)
    runs = [
        (low + 1, high) for low, high in zip([-1, *sparse[:-1]], sparse, strict=True)
    ]
    shuffled = data.draw(st.permutations(runs * 2))
    left_out = data.draw(st.sampled_from(runs))
    cut = data.draw(st.integers(1, len(shuffled)))
    with transaction.atomic():
        epoch = opened(now).epoch
        parts = [run for run in shuffled if run != left_out]
        for part in (parts[:cut], parts[cut:]):
            settle(
                now, *(update(epoch, run) for run in part), update(epoch, received=9)
            )

        mark = Mark.objects.get()
        transaction.set_rollback(True)

    above = runs[runs.index(left_out) + 1 :]
    assert mark.processed == left_out[0] - 1
    assert mark.ahead == (((above[0][0], above[-1][1]),) if above else ())


def test_an_older_update_never_moves_a_position_back(db: None, now: datetime) -> None:
    epoch = opened(now).epoch
    newest = update(epoch, (0, 90), received=90, persisted=90, bookmark="ninety")
    oldest = update(epoch, (0, 10), received=10, persisted=10, bookmark="ten")

    for updates in ([newest], [oldest], [newest, oldest], [update(epoch)]):
        answers = settle(now, *updates)

        mark = Mark.objects.get()
        assert set(statuses(answers)) == {SettleStatus.OK}
        assert (mark.processed, mark.received, mark.persisted) == (90, 90, 90)
        assert mark.bookmark == "ninety"


def test_a_bookmark_is_stored_only_if_it_is_the_watermarks(
    db: None, now: datetime
) -> None:
    epoch = opened(now).epoch
    settle(now, update(epoch, (0, 10), bookmark="ten"))

    settle(now, update(epoch, (15, 20), bookmark="twenty"))
    behind_a_hole = Mark.objects.get().bookmark
    settle(now, update(epoch, (11, 14), bookmark="fourteen"))
    closed_later = Mark.objects.get()

    assert behind_a_hole == "ten"
    assert (closed_later.processed, closed_later.bookmark) == (20, "ten")


def test_an_update_without_a_bookmark_keeps_the_stored_one(
    db: None, now: datetime
) -> None:
    epoch = opened(now).epoch
    settle(now, update(epoch, (0, 10), bookmark="ten"))

    settle(now, update(epoch, (11, 20)))

    mark = Mark.objects.get()
    assert (mark.processed, mark.bookmark) == (20, "ten")


def test_opening_a_position_fences_its_last_holder(db: None, now: datetime) -> None:
    first = opened(now).epoch
    settle(now, update(first, (0, 10)))

    second = opened(now).epoch
    late, current, new_publisher = settle(
        now,
        update(first, (0, 99)),
        update(second, (11, 20)),
        update(first, (0, 5), publisher="new"),
    )

    assert second > first
    assert (late.status, current.status) == (SettleStatus.FENCED, SettleStatus.OK)
    assert new_publisher.status == SettleStatus.FENCED
    assert [(m.publisher, m.processed) for m in Mark.objects.all()] == [("", 20)]


def test_positions_opened_together_share_a_new_highest_epoch(
    db: None, now: datetime
) -> None:
    for _ in range(3):
        opened(now, sub_id="1")
    opened(now, sub_id="2")
    opened(now, client_name="billing-2")

    together = opened(now, sub_id=None, topic=None)

    assert [p.sub_id for p in together.positions] == ["1", "2"]
    assert {p.epoch for p in together.positions} == {together.epoch}
    assert together.epoch == 4
    other = BookmarkPosition.objects.get(client_name="billing-2")
    assert other.epoch < together.epoch


def test_opening_an_unknown_client_gives_an_epoch_and_no_position(
    db: None, now: datetime
) -> None:
    holder = opened(now, sub_id=None, topic=None)

    assert (holder.epoch, list(holder.positions)) == (1, [])
    assert not BookmarkPosition.objects.exists()


def test_opening_a_position_marks_its_topic_as_replaying(
    db: None, now: datetime
) -> None:
    opened(now, topic="queue", replays=False)
    opened(now, topic="orders")

    assert dict(Topic.objects.values_list("name", "replays")) == {
        "queue": False,
        "orders": True,
    }


def test_a_key_opens_and_settles_only_what_it_sees(db: None, now: datetime) -> None:
    epoch = opened(now).epoch
    opened(now, topic="orders.eu", sub_id="2")

    with pytest.raises(Forbidden):
        opened(now, EU)
    holder = opened(now, EU, sub_id=None, topic=None)
    (refused,) = position_settling.settle(
        members=[update(epoch, (0, 5))], principal=EU, now=now
    )

    assert [position.topic.name for position in holder.positions] == ["orders.eu"]
    assert BookmarkPosition.objects.get(topic__name="orders").epoch == epoch
    assert (refused.status, refused.pointer) == (SettleStatus.REJECTED, "/topic")
    assert not Mark.objects.exists()


@pytest.mark.parametrize(
    ("broken", "pointer", "remedy"),
    [
        ({"settled": [[0, 4], [9, 7]]}, "/settled/1", "upside down: send [7, 9]"),
        ({"settled": [[-1, 4]]}, "/settled/0", "from 0 to 2^63-2"),
        ({"settled": [[0, 2**63 - 1]]}, "/settled/0", "from 0 to 2^63-2"),
        ({"settled": [[0, True]]}, "/settled/0", "whole numbers"),
        ({"settled": [[0]]}, "/settled/0", "a pair"),
        ({"settled": [[0, 1e9]]}, "/settled/0", "whole numbers"),
        ({"settled": "all"}, "/settled", "a list of runs"),
        ({"settled": [[0, 0]] * 4097}, "/settled", "at most 4096"),
        ({"received": -1}, "/received", "from 0 to 2^63-2"),
        ({"persisted": 2**63}, "/persisted", "from 0 to 2^63-2"),
        ({"epoch": 0}, "/epoch", "the epoch that opening"),
        ({"epoch": "1"}, "/epoch", "the epoch that opening"),
        ({"client_name": ""}, "/client_name", "missing"),
        ({"sub_id": None}, "/sub_id", "missing"),
        ({"publisher": 7}, "/publisher", "send text"),
        ({"publisher": "a\0"}, "/publisher", "remove it"),
        ({"bookmark": "\ud800"}, "/bookmark", "remove it"),
        ({"sub_id": "a\nb"}, "/sub_id", "remove it"),
        ({"topic": "never opened"}, "/topic", "open it first"),
    ],
)
def test_an_invalid_update_is_rejected_alone_with_a_reason(
    db: None, now: datetime, broken: dict[str, object], pointer: str, remedy: str
) -> None:
    epoch = opened(now).epoch
    bad = {**update(epoch), **broken}

    before, answer, after = settle(
        now, update(epoch, (0, 4)), bad, update(epoch, (5, 6))
    )

    assert statuses([before, after]) == [SettleStatus.OK, SettleStatus.OK]
    assert (answer.status, answer.pointer) == (SettleStatus.REJECTED, pointer)
    assert remedy in str(answer.detail)
    assert Mark.objects.get().processed == 6


def test_an_update_that_is_no_object_is_rejected_alone(db: None, now: datetime) -> None:
    epoch = opened(now).epoch

    answers = settle(now, 7, update(epoch, (0, 2**63 - 2)))

    assert statuses(answers) == [SettleStatus.REJECTED, SettleStatus.OK]
    assert Mark.objects.get().processed == 2**63 - 2


def test_a_position_of_holes_gets_its_pressure_and_then_a_refusal(
    db: None, now: datetime
) -> None:
    epoch = opened(now).epoch
    holes = [(n, n) for n in range(2, 2 * MOST_RUNS + 1, 2)]
    three_quarters = MOST_RUNS * 3 // 4

    (calm,) = settle(now, update(epoch, *holes[: three_quarters - 1]))
    (pressed,) = settle(now, update(epoch, *holes[:three_quarters]))
    (full,) = settle(now, update(epoch, *holes[three_quarters:]))
    (refused,) = settle(now, update(epoch, (9000, 9000), received=9000))
    mark = Mark.objects.get()
    (relieved,) = settle(now, update(epoch, (0, 8191)))

    assert (calm, pressed.pressure, full.pressure) == (position_settling.OK, 0.75, 1.0)
    assert (refused.status, refused.pressure) == (SettleStatus.REJECTED, 1.0)
    assert refused.pointer == "/settled"
    assert (len(mark.ahead), mark.received) == (MOST_RUNS, 2 * MOST_RUNS)
    assert relieved == position_settling.OK
    assert Mark.objects.get().processed == 2 * MOST_RUNS


def test_pressure_is_that_of_the_stored_mark(db: None, now: datetime) -> None:
    epoch = opened(now).epoch
    holes = [(n, n) for n in range(2, 2 * MOST_RUNS + 1, 2)]
    settle(now, update(epoch, *holes))

    (nothing,) = settle(now, update(epoch, received=7))
    (again, other) = settle(
        now, update(epoch, holes[0]), update(epoch, (0, 0), publisher="other")
    )

    assert (nothing.pressure, again.pressure, other) == (1.0, 1.0, position_settling.OK)


def test_a_new_publisher_is_settled_beside_known_fenced_and_unknown_ones(
    db: None, now: datetime
) -> None:
    old = opened(now, sub_id="2").epoch
    epoch = opened(now, sub_id="2").epoch
    settle(now, update(epoch, (0, 3), sub_id="2"))

    answers = settle(
        now,
        update(epoch, (4, 6), sub_id="2"),
        update(epoch, (0, 8), sub_id="2", publisher="new"),
        update(old, (0, 99), sub_id="2", publisher="fenced"),
        update(epoch, (0, 99), sub_id="never opened"),
        update(epoch, (7, 9), sub_id="2"),
        update(epoch, (9, 9), sub_id="2", publisher="new", bookmark="nine"),
    )

    assert [answer.status for answer in answers] == [
        *(SettleStatus.OK, SettleStatus.OK, SettleStatus.FENCED),
        *(SettleStatus.REJECTED, SettleStatus.OK, SettleStatus.OK),
    ]
    marks = Mark.objects.order_by("publisher")
    assert [(m.publisher, m.processed, m.bookmark) for m in marks] == [
        ("", 9, ""),
        ("new", 9, "nine"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        'say "so"',
        "back\\slash\\",
        "{a,b}",
        "NULL",
        "null",
        "gr\u00fc\u00df \u2028 \U0001f40d",
        "%s",
    ],
)
def test_a_name_is_stored_unchanged(db: None, now: datetime, name: str) -> None:
    named: dict[str, Any] = {"client_name": name, "sub_id": name, "topic": name}
    epoch = opened(now, **named).epoch

    settle(now, update(epoch, (0, 4), **named, publisher=name, bookmark=name))

    mark = Mark.objects.select_related("position__topic").get()
    position = mark.position
    assert {mark.publisher, mark.bookmark, position.topic.name} == {name}
    assert (position.client_name, position.sub_id) == (name, name)


def test_thousands_of_updates_take_a_few_statements(
    db: None, now: datetime, django_assert_max_num_queries: Any
) -> None:
    consumers = [f"consumer-{n}" for n in range(300)]
    epochs = [opened(now, client_name=name).epoch for name in consumers]
    batch = [
        update(epoch, (turn * 10, turn * 10 + 9), client_name=name)
        for turn in range(10)
        for name, epoch in zip(consumers, epochs, strict=True)
    ]
    random.Random(7).shuffle(batch)
    settle(now, *batch[:300])

    with django_assert_max_num_queries(7):
        answers = settle(now, *batch)

    assert set(statuses(answers)) == {SettleStatus.OK}
    assert set(Mark.objects.values_list("processed", flat=True)) == {99}
    assert Mark.objects.count() == 300


def hot_updates() -> int:
    """Count the updates that stayed on their page and touched no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT pg_stat_get_tuples_hot_updated('bookmarks_mark'::regclass)"
        )
        number: int = cursor.fetchone()[0]
        return number


# Within one transaction all old row versions would stay, until the page is full.
@pytest.mark.django_db(transaction=True)
def test_settling_updates_rows_on_their_page(now: datetime) -> None:
    epoch = opened(now).epoch
    settle(now, update(epoch, (0, 0)))
    before = hot_updates()
    for seq in range(1, 40):
        settle(now, update(epoch, (0, seq)))

    assert hot_updates() - before == 39


def test_postgres_refuses_an_impossible_position(db: None, now: datetime) -> None:
    topic = Topic.objects.create(name="orders", native_name="orders")

    for values in (
        {"client_name": "a", "source": "sdk"},
        {"sub_id": "1", "source": "sdk"},
        {"epoch": 1, "source": "broker"},
        {"source": "somebody"},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            BookmarkPosition.objects.create(
                topic=topic, observed_at=now, moved_at=now, **values
            )


@pytest.mark.django_db(transaction=True)
def test_reversing_the_migration_keeps_positions_of_brokers(now: datetime) -> None:
    settle(now, update(opened(now).epoch, (0, 10)))
    watermark_samples.take(now=now)
    group = told_by_broker()
    bookmarks.observe(topic=Topic.objects.get(), consumers=[group], now=now)

    migrate("bookmarks", "0001")
    migrate()

    assert [p.source for p in BookmarkPosition.objects.all()] == ["broker"]
    assert [mark.head for mark in Mark.objects.all()] == [19]


def indexes_of_marks() -> set[str]:
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(
            cursor, Mark._meta.db_table
        )
    columns = [each["columns"] for each in constraints.values() if each["index"]]
    unique = [each["columns"] for each in constraints.values() if each["unique"]]
    return {",".join(names) for names in [*columns, *unique]}


@pytest.mark.django_db(transaction=True)
def test_marks_have_no_redundant_index() -> None:
    lean = indexes_of_marks()

    migrate("bookmarks", "0002")
    before = indexes_of_marks()
    migrate()

    assert lean == indexes_of_marks() == {"id", "position_id,publisher"}
    assert before == {*lean, "position_id"}


def test_a_position_is_sampled_once_a_minute_if_it_changed(
    db: None, now: datetime
) -> None:
    epoch = opened(now).epoch
    settle(now, update(epoch, (0, 10)))

    counts = []
    for seconds, seq in [(0, 10), (10, 11), (50, 12), (60, 13), (120, 13), (180, 14)]:
        settle(now, update(epoch, (0, seq)))
        counts.append(watermark_samples.take(now=now + timedelta(seconds=seconds)))

    (position,) = BookmarkPosition.objects.all()
    stood = [
        watermark_samples.watermarks_at(
            position_id=position.pk, at=now + timedelta(seconds=s)
        ).get("")
        for s in (-1, 0, 59, 60, 179, 180)
    ]
    assert counts == [1, 0, 0, 1, 0, 1]
    assert stood == [None, 10, 10, 13, 13, 14]


def test_old_samples_are_pruned_but_for_the_last_one(db: None, now: datetime) -> None:
    epoch = opened(now).epoch
    for days, seq in [(50, 1), (40, 2), (20, 3)]:
        settle(now, update(epoch, (0, seq)))
        watermark_samples.take(now=now - timedelta(days=days))

    pruned = watermark_samples.prune(now=now)

    samples = Sample.objects.order_by("at").values_list("processed", flat=True)
    assert (pruned, list(samples)) == (1, [2, 3])
    (position,) = BookmarkPosition.objects.all()
    at = now - timedelta(days=29)
    assert watermark_samples.watermarks_at(position_id=position.pk, at=at) == {"": 2}


@pytest.mark.parametrize(
    ("bookmark", "place"),
    [
        ("17", BookmarkPlace("", 17)),
        ("1700000000000-3", BookmarkPlace("", (1700000000000 << 20) + 3)),
        (f"{AMPS}|1465596069899000013|", BookmarkPlace(AMPS, 1465596069899000013)),
        ("9223372036854775806", BookmarkPlace("", 2**63 - 2)),
        ("9223372036854775807", None),
        ("", None),
        ("order-17", None),
        ("1-auto", None),
        ("\u0661\u0667", None),
        (f"{AMPS}|1|,7|2|", None),
        ("0|1|x", None),
    ],
)
def test_a_bookmark_has_a_place_only_in_known_forms(
    bookmark: str, place: BookmarkPlace | None
) -> None:
    assert place_of(bookmark) == place
