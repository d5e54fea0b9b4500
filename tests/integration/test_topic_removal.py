"""A topic is removed with what lanes observed of it, unless a record refers to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from django.db import connection

from apps.audit import verification
from apps.audit.models import Entry
from apps.bookmarks.models import BookmarkPosition, Mark
from apps.brokers.adapter_contract import Delivered
from apps.brokers.errors import Removed
from apps.brokers.models import Broker, Topic
from apps.brokers.row_locks import lock_topics
from apps.brokers.services import broker_registration
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture import unused_topic_removal
from apps.capture.intake import guard_heartbeats
from apps.capture.lanes import depth_polling, lane_mode_and_pause, observe_only_lane
from apps.capture.models import Counter, HeldDeadLetter, Lane, Mode, Sample
from apps.capture.unused_topic_removal import (
    ChangedSincePreview,
    RecordsExist,
)
from apps.core.errors import Absent, Forbidden
from apps.poison.models import Poison
from apps.reports.models import Day, Rate, Run
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import previews
from apps.triage.services.selection_requests import SelectionRequest
from tests.failure_report_builders import GUARD, count_up, counter, guard_word, poisons
from tests.in_memory_queue_broker import Queues
from tests.lane_crash_simulation import draining, topic_on_queues
from tests.position_opening_and_settling import opened, told_by_broker
from tests.skip_builders_and_list_mirror import added

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture
def orders(broker: Queues, now: datetime) -> Topic:
    return topic_on_queues(now, mode=Mode.OBSERVE, name="orders")


@pytest.fixture
def mail(broker: Queues, now: datetime) -> Topic:
    return topic_on_queues(now, mode=Mode.OBSERVE, name="mail")


def seen_by_a_lane(broker: Queues, topic: Topic, now: datetime) -> None:
    """Write all that a lane writes of a topic without capturing a letter."""
    broker.put(f"{topic.name}-dead", b"1")
    lane = Lane.objects.possible().get(pk=topic.pk)
    broker.consumers = [told_by_broker()]
    observe_only_lane.Observer(lane=lane, clock=lambda: now, timer=lambda: 0.0).step()
    for number, total in enumerate((10, 30)):
        delivered = Delivered(total=total, at=now, since="a")
        depth_polling.count_deliveries(
            lane=lane, delivered=delivered, now=now + number * MINUTE
        )
    with draining(topic, now) as work:
        work._hold(work.reader.read(limit=1, wait=0.0)[0], "too large")
        sample = Sample(topic=topic, place=0, bookmark="1", start=b"1", size=1)
        sample.headers, sample.seen_at = [], now
        sample.save()


def remove(principal: Principal, now: datetime, **changes: object) -> None:
    broker = Broker.objects.get()
    unused_topic_removal.remove_broker(
        broker=broker,
        principal=principal,
        now=now,
        **changes,  # type: ignore[arg-type] # of several kinds
    )


def test_a_broker_is_removed_with_its_topics_and_their_observations(
    broker: Queues, orders: Topic, mail: Topic, operator: Principal, now: datetime
) -> None:
    row = Broker.objects.get()
    for topic in (orders, mail):
        seen_by_a_lane(broker, topic, now)
    observations = (Lane, Sample, HeldDeadLetter, Counter, BookmarkPosition, Mark)
    assert [each.objects.count() for each in observations] == [2] * 6

    remove(operator, now, reason="the wrong one")

    removed = (Broker, Topic, *observations)
    entry = Entry.objects.order_by("-seq")[0]
    assert [each.objects.exists() for each in removed] == [False] * len(removed)
    assert (entry.action, entry.subject) == ("broker.removed", "broker:queues")
    assert (entry.detail["topics"], entry.reason) == (
        ["mail", "orders"],
        "the wrong one",
    )
    assert verification.verify().ok
    assert len(broker.contents("orders-dead")) == 1
    with pytest.raises(Absent):
        broker_registration.one(broker_id=row.pk)


def target_of_an_operation(now: datetime) -> None:
    (poison,) = poisons(now, 1, topic="elsewhere")
    previews.preview(
        selection=SelectionRequest(
            verb=Verb.REDRIVE, ids=(poison.pk,), target_topic="orders"
        ),
        principal=Principal(actor=GUARD.actor, scopes=frozenset(Scope)),
        now=now,
    )
    assert Operation.objects.exclude(target_topic=None).exists()


def reported(now: datetime) -> None:
    run = Run.objects.create(
        first_day=now.date(), last_day=now.date(), asked_by="anna", asked_at=now
    )
    day = Day.objects.create(day=now.date(), run=run, rows_in=0, late_rows=0)
    zeros = "failed poisoned retried redriven confirmed recurred dropped uncounted"
    Rate.objects.create(
        day=day,
        topic=Topic.objects.get(name="orders"),
        source="broker",
        delivered=20,
        skipped=0,
        **dict.fromkeys(zeros.split(), 0),
    )


def guarded(now: datetime) -> None:
    guard_heartbeats.record_heartbeats(
        members=[guard_word(now)], principal=GUARD, now=now
    )


def moved(now: datetime) -> None:
    (poison,) = poisons(now, 1, topic="elsewhere")
    Poison.objects.filter(pk=poison.pk).update(
        state="moved",
        moved_to=Topic.objects.get(name="orders"),
        redrives=1,
        sent_at=now,
    )


@pytest.mark.parametrize(
    ("leave", "word"),
    [
        (lambda now: poisons(now, 1), "messages"),
        (moved, "messages"),
        (lambda now: count_up(now, counter()), "counts of its consumers"),
        (added, "skips"),
        (opened, "positions"),
        (target_of_an_operation, "operations"),
        (reported, "reports"),
        (guarded, "guards"),
    ],
)
def test_any_record_blocks_the_removal_of_its_topic_and_its_broker(
    broker: Queues,
    orders: Topic,
    mail: Topic,
    operator: Principal,
    now: datetime,
    leave: Callable[[datetime], object],
    word: str,
) -> None:
    seen_by_a_lane(broker, mail, now)
    leave(now)
    before = verification.verify().head

    with pytest.raises(RecordsExist) as refusal:
        remove(operator, now)
    with pytest.raises(RecordsExist):
        unused_topic_removal.remove_topics(
            topics=[orders.pk], principal=operator, now=now
        )

    assert f"orders ({word}) has something on record" in str(refusal.value)
    assert "Pause" in str(refusal.value)
    assert "mail" not in str(refusal.value)
    assert Topic.objects.filter(broker__name="queues").count() == 2
    assert (Lane.objects.count(), Sample.objects.count()) == (2, 1)
    assert verification.verify().head == before


def test_a_refusal_names_at_most_ten_topics(
    broker: Queues, operator: Principal, now: datetime
) -> None:
    for number in range(unused_topic_removal.MOST_NAMED + 2):
        topic_on_queues(now, name=f"t{number:02}")
        poisons(now, 1, topic=f"t{number:02}")

    with pytest.raises(
        RecordsExist, match=r"t09 \(messages\); and 2 more have"
    ) as refusal:
        remove(operator, now)

    assert "t10" not in str(refusal.value)


def test_one_topic_is_removed_and_the_others_stay(
    broker: Queues, orders: Topic, mail: Topic, operator: Principal, now: datetime
) -> None:
    seen_by_a_lane(broker, mail, now)
    poisons(now, 1)

    unused_topic_removal.remove_topics(topics=[mail.pk], principal=operator, now=now)

    entry = Entry.objects.order_by("-seq")[0]
    assert list(Topic.objects.values_list("name")) == [("orders",)]
    assert (entry.action, entry.subject) == ("topic.removed", "topic:mail")
    assert not Counter.objects.exists()


def test_a_removal_is_refused_when_the_topics_changed_after_the_preview(
    broker: Queues, orders: Topic, operator: Principal, now: datetime
) -> None:
    topic_on_queues(now, name="new")

    for previewed_ids in ([], [orders.pk]):
        with pytest.raises(ChangedSincePreview):
            remove(operator, now, previewed_ids=previewed_ids)
    with pytest.raises(ChangedSincePreview):
        unused_topic_removal.remove_topics(
            topics=[orders.pk, 10**9], principal=operator, now=now
        )
    with pytest.raises(ChangedSincePreview):
        unused_topic_removal.remove_topics(topics=[], principal=operator, now=now)

    assert Topic.objects.count() == 2


def test_a_principal_without_the_right_removes_nothing(
    broker: Queues, orders: Topic, operator: Principal, now: datetime
) -> None:
    reader = replace(operator, scopes=frozenset(Scope) - {Scope.BROKERS_WRITE})
    elsewhere = replace(operator, topics=("mail",))

    for principal in (reader, elsewhere):
        with pytest.raises(Forbidden):
            remove(principal, now)
    with pytest.raises(Forbidden):
        unused_topic_removal.remove_topics(
            topics=[orders.pk], principal=reader, now=now
        )
    with pytest.raises(ChangedSincePreview):
        unused_topic_removal.remove_topics(
            topics=[orders.pk], principal=elsewhere, now=now
        )

    assert (Broker.objects.count(), Topic.objects.count()) == (1, 1)


def test_data_for_a_removed_topic_creates_it_again(
    broker: Queues, orders: Topic, operator: Principal, now: datetime
) -> None:
    remove(operator, now)

    with pytest.raises(Removed):
        lock_topics(topics=[orders.pk])
    with pytest.raises(Absent):
        lane_mode_and_pause.pause(topic=orders, principal=operator, now=now)
    with pytest.raises(Removed):
        lane_mode_and_pause.set_mode(
            topic=orders, mode=Mode.TEE, tee_queue="c", principal=operator, now=now
        )
    (poison,) = poisons(now, 1)

    assert poison.topic.broker is None
    assert poison.topic_id != orders.pk


def test_a_removed_broker_gets_no_topic(
    broker: Queues, orders: Topic, operator: Principal, now: datetime
) -> None:
    row = Broker.objects.get()
    remove(operator, now)

    with pytest.raises(Absent):
        brokers.register_topic(
            name="late",
            broker=row,
            dead_letter_queue="",
            policy={},
            actor=operator.actor,
            now=now,
        )
    with pytest.raises(Absent):
        broker_registration.alter(broker=row, name="b", principal=operator, now=now)
    with pytest.raises(Absent):
        unused_topic_removal.remove_broker(broker=row, principal=operator, now=now)


def test_every_relation_to_a_topic_has_an_index() -> None:
    """Check each: Postgres looks a removed topic up in every referring table."""
    with connection.cursor() as cursor:
        cursor.execute(UNINDEXED)
        unindexed = cursor.fetchall()

    assert unindexed == []


def test_a_preview_of_removals_reads_no_table_whole(
    broker: Queues, orders: Topic, mail: Topic, now: datetime
) -> None:
    words = [guard_word(now, client_name=f"c{number}") for number in range(2_000)]
    guard_heartbeats.record_heartbeats(members=words, principal=GUARD, now=now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE capture_guard")
    before = tables_read_whole()

    result = unused_topic_removal.preview(Topic.objects.all())

    assert [topic.name for topic in result.removable] == ["mail"]
    assert tables_read_whole() == before


def tables_read_whole() -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, seq_scan FROM pg_stat_xact_user_tables "
            "WHERE seq_scan > 0 AND relname <> 'brokers_topic' ORDER BY 1"
        )
        return list(cursor.fetchall())


# An index that begins with the column, of all rows or of those with a topic.
UNINDEXED = """
SELECT refers.conrelid::regclass::text, refers.conkey FROM pg_constraint refers
WHERE refers.contype = 'f' AND refers.confrelid = 'brokers_topic'::regclass
  AND NOT EXISTS (
    SELECT FROM pg_index WHERE indrelid = refers.conrelid
    AND indkey[0] = refers.conkey[1]
    AND (indpred IS NULL
         OR pg_get_expr(indpred, indrelid) ~ '^\\(\\w+_id IS NOT NULL\\)$')
)
"""
