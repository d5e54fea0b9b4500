"""Triage: operations act on exactly what was previewed, and each item has a result."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import psycopg
import pytest
from django.db import connection, transaction
from redis import Redis

from apps.audit import verification
from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Forbidden, Invalid
from apps.poison.models import Poison, Redrive
from apps.poison.query_language import Query
from apps.poison.redrive_signatures import verified_redrive_id
from apps.poison.services import redrive_confirmations_by_token
from apps.poison.states import PoisonState
from apps.team.rights import GRANTS, Principal, Role, Scope
from apps.triage.errors import Stale
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import OperationState, Verb
from apps.triage.services import (
    confirm_and_undo,
    control,
    orphaned_operations_and_expired_rows,
    preview_summaries,
    previews,
)
from apps.triage.services.control import CANCEL
from apps.triage.services.running import SliceEnd
from tests.failure_report_builders import drop, poisons
from tests.triage_operation_runner import (
    MINUTE,
    AwayPublisher,
    confirm,
    counts_of,
    preview,
    redriven,
    run,
    sent_messages,
)

pytestmark = pytest.mark.django_db(transaction=True)

BORIS = Principal(actor=Actor.user("boris"), scopes=frozenset(Scope))


def test_a_requeue_sends_each_message_as_it_came(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    headers = [
        ("trace", b"\x00\xff"),
        ("x-poison-cause", b"exhausted"),
        ("x-poisonweb-redrive", b"an old one"),
    ]
    (poison,) = poisons(now, 1, body=b"\xff\x00", headers=headers)
    operation = confirm(operator, preview(operator, now), now)

    ended = run(operation, now)

    (fields,) = sent_messages(stream)
    token = fields.pop(b"x-poisonweb-redrive").decode()
    assert fields == {b"body": b"\xff\x00", b"trace": b"\x00\xff"}
    assert verified_redrive_id(token, topic="orders", digest=poison.digest) is not None
    assert (ended, counts_of(operation)) == (SliceEnd.DONE, {"sent": 1})
    poison.refresh_from_db()
    assert poison.state == PoisonState.REDRIVEN


def test_a_requeue_goes_to_its_topic_whatever_queue_its_headers_name(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    Topic.objects.create(
        name="elsewhere", native_name="elsewhere", broker_id=orders.broker_id
    )
    names = (
        *("NServiceBus.FailedQ", "rbs2-source-queue", "MT-Fault-InputAddress"),
        *("x-original-exchange", "x-original-routingKey", "CC", "reply-to"),
        *("kafka_dlt-original-topic", "__connect.errors.topic", "x-original-queue"),
        *("topic", "queue", "x-poisonweb-target", "target_topic"),
    )
    for name in names:
        poisons(now, 1, headers=[(name, b"elsewhere")])

    run(confirm(operator, preview(operator, now), now), now)

    assert (stream.xlen("orders"), stream.xlen("elsewhere")) == (len(names), 0)


def test_a_message_that_comes_after_the_preview_is_never_touched(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = preview(operator, now)
    (late,) = poisons(now, 1)

    run(confirm(operator, operation, now), now)

    late.refresh_from_db()
    assert (operation.total, late.state) == (2, PoisonState.OPEN)


def test_a_preview_counts_skipped_messages_by_reason(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    open_one, dropped = poisons(now, 2)
    drop(now, dropped)

    summary = preview_summaries.summarize(operation=preview(operator, now))

    assert (summary.will_act, summary.skipped) == (
        1,
        (("dropped: restore it first", 1),),
    )
    assert summary.by_topic == (("orders", 1),)
    assert [poison.pk for poison in summary.sample] == [open_one.pk]


def test_one_of_two_overlapping_operations_gets_each_message(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    first, second, third = poisons(now, 3)
    mine = preview(operator, now, ids=(first.pk, second.pk))
    theirs = preview(BORIS, now, ids=(second.pk, third.pk))

    confirm(operator, mine, now)
    confirm(BORIS, theirs, now)
    run(mine, now, by=AwayPublisher)
    run(theirs, now)
    run(mine, now + MINUTE)

    (skipped,) = standings_of(theirs, standings=["skipped"], limit=10)
    assert (skipped.poison, skipped.explanation) == (
        second.pk,
        f"operation {mine.pk} has it",
    )
    assert stream.xlen("orders") == 3
    assert Redrive.objects.count() == 3


def test_a_used_token_is_refused_with_a_fresh_preview(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = preview(operator, now)
    confirm(operator, operation, now)

    with pytest.raises(Stale) as refusal:
        confirm(operator, operation, now)

    assert refusal.value.new_preview is not None
    assert refusal.value.new_preview.token != operation.token


@pytest.mark.parametrize("case", ["foreign", "unknown", "expired", "empty"])
def test_an_invalid_token_is_refused(
    orders: Topic, operator: Principal, now: datetime, case: str
) -> None:
    poisons(now, 1)
    operation = preview(operator, now)
    who, when, token = operator, now, operation.token
    if case == "foreign":
        who = BORIS
    elif case == "unknown":
        token = uuid.uuid4()
    elif case == "expired":
        when = now + 15 * MINUTE
    else:
        drop(now, *Poison.objects.all())
        token = preview(operator, now).token

    with pytest.raises(Stale):
        confirm_and_undo.confirm(token=token, reason="", principal=who, now=when)

    assert not Operation.objects.confirmed().exists()


def test_a_drop_needs_a_reason(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    operation = preview(operator, now, verb=Verb.DROP)

    with pytest.raises(Invalid, match="reason"):
        confirm_and_undo.confirm(
            token=operation.token, reason=" ", principal=operator, now=now
        )


def test_a_preview_writes_nothing_to_its_messages(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    locks = "SELECT id, xmin::text, xmax::text FROM poison_poison ORDER BY id"
    with connection.cursor() as cursor:
        cursor.execute(locks)
        before = cursor.fetchall()
        previewed = preview(operator, now)
        cursor.execute(locks)
        assert cursor.fetchall() == before
    assert previewed.total == len(before) == 3


def test_a_drop_can_be_undone_as_an_operation_of_its_own(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    after_the_drop = set(Poison.objects.values_list("state", flat=True))

    undo = confirm_and_undo.undo(operation_id=dropping.pk, principal=operator, now=now)
    run(undo, now)

    assert after_the_drop == {"dropped"}
    assert (counts_of(dropping), counts_of(undo)) == ({"dropped": 3}, {"restored": 3})
    assert set(Poison.objects.values_list("state", flat=True)) == {"open"}
    assert undo.undo_of_id == dropping.pk


def test_a_worker_takes_the_items_of_a_large_undo(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)

    undo = confirm_and_undo.undo(
        operation_id=dropping.pk, principal=operator, now=now, at_once=2
    )
    assert (undo.state, undo.taken, undo.items.count()) == ("queued", False, 0)
    entry = Entry.objects.filter(subject=f"operation:{undo.pk}").get()
    assert entry.detail["will_act"] == 3
    run(undo, now)

    undo.refresh_from_db()
    assert (undo.state, undo.total, undo.will_act) == ("done", 3, 3)
    assert counts_of(undo) == {"restored": 3}
    assert set(Poison.objects.values_list("state", flat=True)) == {PoisonState.OPEN}


def test_a_large_undo_has_the_items_of_its_drop_in_the_same_order(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 4)
    previewed = preview(operator, now, verb=Verb.DROP)
    drop(now, previewed.items.get(number=1).poison)
    dropping = confirm(operator, previewed, now)
    run(dropping, now)
    order = list(dropping.items.order_by("number").values_list("poison_id", flat=True))
    # Whatever happens to them meanwhile.
    Poison.objects.filter(pk=order[0]).update(last_failed_at=now + MINUTE)
    Poison.objects.filter(pk=order[3]).update(state="open", dropped_at=None)

    undo = confirm_and_undo.undo(
        operation_id=dropping.pk, principal=operator, now=now, at_once=2
    )
    run(undo, now)

    items = undo.items.order_by("number").values_list("number", "poison_id")
    assert list(items) == [(0, order[0]), (1, order[2]), (2, order[3])]
    assert counts_of(undo) == {"restored": 2, "skipped": 1}
    assert undo.skipped.get().reason == "not dropped"


def test_a_large_undo_that_was_cancelled_before_its_run_restores_nothing(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    undo = confirm_and_undo.undo(
        operation_id=dropping.pk, principal=operator, now=now, at_once=2
    )

    control.change_state(
        CANCEL, operation_id=undo.pk, reason="", principal=operator, now=now
    )
    run(undo, now)

    undo.refresh_from_db()
    assert (undo.state, undo.items.count()) == ("cancelled", 0)
    assert set(Poison.objects.values_list("state", flat=True)) == {PoisonState.DROPPED}


def test_undoing_twice_finds_nothing_left(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)
    run(dropping, now)
    run(
        confirm_and_undo.undo(operation_id=dropping.pk, principal=operator, now=now),
        now,
    )

    with pytest.raises(Stale):
        confirm_and_undo.undo(operation_id=dropping.pk, principal=operator, now=now)


def test_a_topic_without_a_broker_refuses_and_the_rest_goes_on(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    (stray,) = poisons(now, 1, topic="nowhere")
    everything = preview(operator, now, query=Query.parse("is:open"))

    operation = confirm(operator, everything, now)
    run(operation, now)

    assert counts_of(operation) == {"sent": 2, "refused": 1}
    (refused,) = standings_of(operation, standings=["refused"], limit=10)
    assert refused.poison == stray.pk
    assert refused.explanation == "the topic nowhere has no broker"
    stray.refresh_from_db()
    assert stray.state == PoisonState.OPEN


def test_a_message_sent_to_another_topic_is_moved(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    Topic.objects.create(
        name="parking", native_name="parking", broker_id=orders.broker_id
    )

    operation = confirm(operator, preview(operator, now, target_topic="parking"), now)
    run(operation, now)

    poison.refresh_from_db()
    assert (stream.xlen("parking"), stream.xlen("orders")) == (1, 0)
    assert (poison.state, counts_of(operation)) == (PoisonState.MOVED, {"moved": 1})


def test_a_target_without_a_broker_is_refused_at_once(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    Topic.objects.create(name="nowhere", native_name="nowhere")

    with pytest.raises(Invalid, match="no broker"):
        preview(operator, now, target_topic="nowhere")
    with pytest.raises(Invalid, match="there is no topic unheard of"):
        preview(operator, now, target_topic="unheard of")


def test_a_silent_message_may_be_sent_again_or_dropped(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    run(confirm(operator, preview(operator, now), now), now)

    soon = preview_summaries.summarize(operation=preview(operator, now + 9 * MINUTE))
    late = preview_summaries.summarize(operation=preview(operator, now + 11 * MINUTE))

    assert soon.skipped == (("already sent, no answer yet", 1),)
    assert late.will_act == 1


def test_messages_decided_meanwhile_are_skipped_with_the_reason(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    first, _ = poisons(now, 2)
    operation = preview(operator, now)
    drop(now, first)

    confirm(operator, operation, now)
    run(operation, now)

    assert counts_of(operation) == {"skipped": 1, "sent": 1}
    (item,) = standings_of(operation, standings=["skipped"], limit=10)
    assert (item.poison, item.explanation) == (first.pk, "dropped: restore it first")


def test_messages_answered_meanwhile_are_skipped_with_the_reason(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    token = redriven(poison, now)
    later = now + 11 * MINUTE  # it is silent
    operation = confirm(operator, preview(operator, later), later)
    redrive_confirmations_by_token.confirm(tokens=[(token, "orders")], now=later)

    run(operation, later)

    assert counts_of(operation) == {"skipped": 1}
    (item,) = standings_of(operation, limit=10)
    assert item.explanation == "meanwhile it became confirmed"


def test_what_an_operation_may_still_send_cannot_be_dropped(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    operation = confirm(operator, preview(operator, now), now)

    drop(now, poison)
    run(operation, now)

    assert counts_of(operation) == {"sent": 1}


def test_confirming_and_finishing_are_audited_with_reason_and_counts(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = confirm(operator, preview(operator, now), now)

    run(operation, now)

    first, last = Entry.objects.filter(subject=f"operation:{operation.pk}").order_by(
        "seq"
    )
    assert (first.action, first.actor, first.reason) == (
        "operation.confirmed",
        "user:anna",
        "a test",
    )
    assert last.action == "operation.finished"
    assert last.detail["counts"] == {"sent": 2}
    assert verification.verify().ok


def test_a_viewer_may_not_preview(orders: Topic, now: datetime) -> None:
    viewer = Principal(actor=Actor.user("vera"), scopes=GRANTS[Role.VIEWER])

    with pytest.raises(Forbidden):
        preview(viewer, now)


def test_topics_outside_a_keys_patterns_do_not_exist_for_it(
    orders: Topic, now: datetime
) -> None:
    poisons(now, 1)
    poisons(now, 1, topic="payments")
    narrow = Principal(
        actor=Actor.key("ci"), scopes=frozenset(Scope), topics=("pay*",), source="api"
    )

    operation = preview(narrow, now, query=Query.parse(""))

    assert [item.poison.topic.name for item in operation.items.all()] == ["payments"]


def test_a_large_selection_is_taken_later_as_of_its_request(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)

    operation = preview(operator, now, at_once=1)
    waiting = orphaned_operations_and_expired_rows.orphans(now=now).to_take
    previews.take(operation_id=operation.pk, now=now)
    previews.take(operation_id=operation.pk, now=now)

    assert (operation.taken, waiting) == (False, (operation.pk,))
    operation.refresh_from_db()
    assert (operation.taken, operation.total, operation.items.count()) == (True, 2, 2)


def test_a_worker_does_not_wait_for_another_one_that_takes_the_same_selection(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = preview(operator, now, at_once=1)

    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT FROM triage_operation FOR UPDATE")
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            previews.take(operation_id=operation.pk, now=now)
    beside_another = operation.items.count()
    previews.take(operation_id=operation.pk, now=now)

    assert (beside_another, operation.items.count()) == (0, 2)


def test_prune_removes_stale_previews_and_nothing_else(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    confirmed = confirm(operator, preview(operator, now), now)
    preview(operator, now)
    preview(operator, now)

    early = orphaned_operations_and_expired_rows.prune(now=now)
    late = orphaned_operations_and_expired_rows.prune(now=now + 15 * MINUTE)

    assert (early.previews, late.previews) == (0, 2)
    assert list(Operation.objects.values_list("pk", "state")) == [
        (confirmed.pk, OperationState.QUEUED.value)
    ]


def test_a_cancelled_operation_outlives_prune_with_its_items(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    cancelled = confirm(operator, preview(operator, now), now)
    control.change_state(
        CANCEL,
        operation_id=cancelled.pk,
        reason="a test",
        principal=operator,
        now=now,
    )
    run(cancelled, now)

    pruned = orphaned_operations_and_expired_rows.prune(now=now + timedelta(days=400))

    cancelled.refresh_from_db()
    assert (pruned.previews, cancelled.state) == (0, OperationState.CANCELLED)
    assert [row.standing for row in standings_of(cancelled, limit=9)] == ["waiting"] * 2


def test_prune_leaves_a_preview_that_is_confirmed_just_now(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    operation = preview(operator, now)
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute(
            "UPDATE triage_operation SET state = 'queued', confirmed_at = created_at"
            " WHERE id = %s",
            [operation.pk],
        )
        # It does not wait for the others.
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '1s'")
            pruned = orphaned_operations_and_expired_rows.prune(now=now + 15 * MINUTE)
        other.commit()

    assert pruned.previews == 0
    assert Operation.objects.get().state == OperationState.QUEUED


def test_a_worker_that_stopped_answering_is_reported(now: datetime) -> None:
    never = orphaned_operations_and_expired_rows.worker_missing_for(now=now)
    orphaned_operations_and_expired_rows.beat(now=now)
    soon = orphaned_operations_and_expired_rows.worker_missing_for(
        now=now + timedelta(seconds=9)
    )
    late = orphaned_operations_and_expired_rows.worker_missing_for(
        now=now + timedelta(seconds=11)
    )

    assert (never, soon, late) == (None, None, timedelta(seconds=11))
