"""Operations of the release before, after an upgrade and beside its processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import pytest
from django.db import transaction
from django.test import Client
from redis import Redis

from apps.brokers.models import Broker, Topic
from apps.core import advisory_locks, clock
from apps.poison.models import Hold, ItemWindow, Poison, Redrive
from apps.poison.redrive_signatures import redrive_of, sign
from apps.poison.services import redrive_confirmations_by_token
from apps.team import services as team
from apps.team.rights import Principal, Role, Scope
from apps.triage.errors import NotConverted, NotTaken, Stale
from apps.triage.item_standings import standings_of
from apps.triage.models import Item, Operation, SkippedItem, lock_name
from apps.triage.operation_states import (
    LAYOUT,
    LAYOUT_BEFORE,
    LAYOUT_IN_CONVERSION,
    OperationState,
    Verb,
)
from apps.triage.services import (
    confirm_and_undo,
    control,
    earlier_layout_conversion,
    orphaned_operations_and_expired_rows,
    preview_summaries,
    previews,
)
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from apps.triage.tasks import rescue
from tests.earlier_layout import AN_HOUR, EarlierItem, earlier, execute, rows
from tests.failure_report_builders import capture, drop, failure, poisons
from tests.lane_crash_simulation import Killed
from tests.triage_operation_runner import (
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)

pytestmark = pytest.mark.django_db(transaction=True)

STATES = (
    *("waiting", "sending", "unknown", "sent", "confirmed", "recurred", "refused"),
    "skipped",
)
# What a run does first: the release before does so under its lock.
OLD_START = """
UPDATE triage_operation SET state = 'running', epoch = epoch + 1
WHERE id = %s AND state IN ('queued', 'running')
"""
# Release 9a46585 did so before it previewed the same once more.
OLD_REPLACEMENT = """
UPDATE triage_operation SET state = 'cancelled', finished_at = %(now)s
WHERE id = %(operation)s AND state = 'preview'
"""
# What a confirmation does last.
OLD_CONFIRM = """
UPDATE triage_item SET held = true WHERE operation_id = %s AND state = 'waiting'
"""


OLD_ANSWER = """
UPDATE poison_redrive SET outcome = %(answer)s, answered_at = %(now)s,
    sent_at = coalesce(sent_at, %(now)s),
    confirmed_at = CASE %(answer)s WHEN 'confirmed' THEN %(now)s END
WHERE item = %(item)s
"""


@contextmanager
def session_of_the_release_before() -> Iterator[None]:
    execute("SET poisonweb.release = ''")
    try:
        yield
    finally:
        execute("SET poisonweb.release = '2'")


def convert_all(*, at_once: int = earlier_layout_conversion.AT_ONCE) -> None:
    while earlier_layout_conversion.convert_next(at_once=at_once):
        pass


def one_of_each(now: datetime, *states: str) -> list[EarlierItem]:
    return [
        EarlierItem(
            poison=poison,
            state=state,
            reason="already dropped" if state == "skipped" else "",
        )
        for poison, state in zip(poisons(now, len(states)), states, strict=True)
    ]


def standings(operation: Operation) -> list[str]:
    operation.refresh_from_db()
    return [item.standing for item in standings_of(operation, limit=100)]


def redrive_ids(stream: Redis) -> list[UUID | None]:
    headers = (fields[b"x-poisonweb-redrive"] for fields in sent_messages(stream))
    return [redrive_of(header.decode()) for header in headers]


def states_of(items: list[EarlierItem]) -> list[str]:
    for item in items:
        item.poison.refresh_from_db()
    return [item.poison.state for item in items]


# What is converted, and how.


def test_each_state_of_an_item_becomes_a_standing_in_its_place(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, *STATES)
    operation = earlier(operator, now, items)
    sends = {each.poison_id: each.pk for each in Redrive.objects.all()}

    convert_all()

    in_doubt = ["unknown" if state == "sending" else state for state in STATES]
    assert standings(operation) == in_doubt
    assert counts_of(operation) == {
        **dict.fromkeys(("waiting", "sent", "confirmed", "recurred", "refused"), 1),
        "unknown": 2,
        "skipped": 1,
    }
    assert list(operation.items.order_by("number").values_list("poison")) == [
        (item.poison.pk,) for item in items
    ]
    assert SkippedItem.objects.get().reason == "already dropped"
    holds = Hold.objects.order_by("item").values_list("item", "n", "redrive", "poison")
    assert list(holds) == [
        (0, 1, None, items[0].poison.pk),
        (1, 1, sends[items[1].poison.pk], items[1].poison.pk),
        (2, 1, sends[items[2].poison.pk], items[2].poison.pk),
    ]
    assert set(Redrive.objects.values_list("operation", "item", "outcome")) == {
        (operation.pk, number, standing)
        for number, standing in enumerate(in_doubt)
        if standing not in {"waiting", "skipped"}
    }
    assert states_of(items)[:3] == ["open", "open", "open"]
    assert not rows("SELECT id FROM triage_item")
    assert (operation.layout, operation.trouble) == (LAYOUT, "")
    assert (operation.judged, operation.total, operation.will_act) == (8, 8, 7)


def test_a_running_operation_goes_on_and_sends_each_message_once(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, *STATES)
    operation = earlier(operator, now, items)
    doubtful = set(
        Redrive.objects.filter(outcome__in=["sending", "unknown"]).values_list(
            "pk", flat=True
        )
    )

    convert_all()
    ended = run(operation, now)

    assert ended is SliceEnd.DONE
    ids = redrive_ids(stream)
    assert len(ids) == len(set(ids)) == 3
    assert doubtful < set(ids)
    assert counts_of(operation) == {
        **dict.fromkeys(("confirmed", "recurred", "refused", "skipped"), 1),
        "sent": 4,
    }
    assert not Hold.objects.exists()


def test_a_finished_operation_shows_the_counts_of_before(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    outcomes = ["confirmed", "sent", "recurred", "refused", "skipped"] * 3
    operation = earlier(
        operator,
        now,
        one_of_each(now, *outcomes),
        state=OperationState.DONE,
        window_size=2,
    )

    convert_all()

    assert counts_of(operation) == dict.fromkeys(
        ("confirmed", "sent", "recurred", "refused", "skipped"), 3
    )
    assert standings(operation) == outcomes
    assert not ItemWindow.objects.unfinished().exists()
    assert ItemWindow.objects.count() == 8
    assert ItemWindow.objects.silent(now) == 0
    assert ItemWindow.objects.silent(now + AN_HOUR) == 3


def test_a_conversion_that_was_killed_goes_on_where_it_was(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    states = [*("skipped", "sent", "sending", "waiting", "waiting") * 2]
    operation = earlier(operator, now, one_of_each(now, *states), window_size=2)

    assert earlier_layout_conversion.convert_next(at_once=4)
    for _ in range(2):
        with pytest.raises(Killed), transaction.atomic():
            earlier_layout_conversion.convert_next(at_once=4)
            raise Killed
    operation.refresh_from_db()
    between = operation.layout, operation.judged, Item.objects.count()
    not_yet = run(operation, now)
    convert_all(at_once=4)

    assert between == (LAYOUT_IN_CONVERSION, 4, 4)
    assert (not_yet, sent_messages(stream)) == (SliceEnd.DONE, [])
    assert counts_of(operation) == {
        **dict.fromkeys(("skipped", "sent", "unknown"), 2),
        "waiting": 4,
    }
    assert run(operation, now) is SliceEnd.DONE
    assert len(set(redrive_ids(stream))) == len(sent_messages(stream)) == 6
    assert counts_of(operation) == {"skipped": 2, "sent": 8}


@pytest.mark.parametrize("at_once", [2, 5_000])
def test_a_drop_goes_on_with_the_first_message_that_waits_and_is_undone(
    orders: Topic, operator: Principal, now: datetime, at_once: int
) -> None:
    states = ("dropped", "skipped", "dropped", "waiting", "skipped", "waiting")
    items = one_of_each(now, *states)
    drop(now, items[0].poison, items[2].poison)
    operation = earlier(operator, now, items, verb=Verb.DROP, window_size=2)

    convert_all(at_once=at_once)
    converted = counts_of(operation), standings(operation), operation.judged
    number_of_holds = Hold.objects.count()
    ended = run(operation, now)
    undone = confirm_and_undo.undo(
        operation_id=operation.pk, principal=operator, now=now
    )
    dropped_in_all = counts_of(operation)
    run(undone, now)

    assert converted == ({"dropped": 2, "skipped": 1, "waiting": 3}, [*states], 3)
    assert number_of_holds == 0
    assert ended is SliceEnd.DONE
    assert dropped_in_all == {"dropped": 4, "skipped": 2}
    assert counts_of(undone) == {"restored": 4}
    assert set(states_of(items)) == {"open"}


def test_a_drop_that_was_finished_then_is_undone_now(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, "dropped", "skipped")
    drop(now, items[0].poison)
    operation = earlier(operator, now, items, verb=Verb.DROP, state=OperationState.DONE)

    with pytest.raises(NotConverted, match="still being converted"):
        confirm_and_undo.undo(operation_id=operation.pk, principal=operator, now=now)
    convert_all()
    undone = confirm_and_undo.undo(
        operation_id=operation.pk, principal=operator, now=now
    )
    run(undone, now)

    assert counts_of(operation) == {"dropped": 1, "skipped": 1}
    assert counts_of(undone) == {"restored": 1}
    assert states_of(items) == ["open", "open"]


def test_what_waits_to_be_given_back_keeps_its_queue_or_is_skipped_without_one(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    with_queue = earlier(
        operator,
        now,
        one_of_each(now, "waiting"),
        verb=Verb.GIVE_BACK,
        target_topic=orders,
    )
    convert_all()
    Topic.objects.update(dead_letter_queue="")
    without = earlier(
        operator,
        now,
        one_of_each(now, "waiting"),
        verb=Verb.GIVE_BACK,
        target_topic=Topic.objects.get(),
    )
    convert_all()

    assert list(Hold.objects.values_list("operation", "queue")) == [
        (with_queue.pk, "orders-poison")
    ]
    assert counts_of(without) == {"skipped": 1}
    assert "no dead-letter queue" in without.skipped.get().reason


def test_unfinished_operations_come_first_and_then_the_newest(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    done = OperationState.DONE
    first, second, third = (
        earlier(operator, now, one_of_each(now, state), state=operation_state)
        for state, operation_state in (
            ("sent", done),
            ("waiting", OperationState.QUEUED),
            ("sent", done),
        )
    )

    order: list[int] = []
    while earlier_layout_conversion.convert_next():
        converted = Operation.objects.filter(layout=LAYOUT)
        order += converted.exclude(pk__in=order).values_list("pk", flat=True)

    assert order == [second.pk, third.pk, first.pk]


def test_a_rescue_converts_what_waits(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    operation = earlier(
        operator, now, one_of_each(now, "sent"), state=OperationState.DONE
    )

    rescue()

    assert counts_of(operation) == {"sent": 1}


# Consumers' answers.


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("outcome", ["sending", "sent"])
def test_a_consumer_confirms_a_redrive_of_then_at_any_time(
    orders: Topic, operator: Principal, now: datetime, when: str, outcome: str
) -> None:
    (item,) = items = one_of_each(now, outcome)
    operation = earlier(operator, now, items)
    redrive = Redrive.objects.get()
    token = sign(redrive=redrive.pk, topic="orders", digest=item.poison.digest)

    if when == "after":
        convert_all()
    (answer,) = redrive_confirmations_by_token.confirm(
        tokens=[(token, "orders")], now=now
    )
    convert_all()
    run(operation, now)

    assert answer.status == "confirmed"
    assert counts_of(operation) == {"confirmed": 1}
    assert states_of(items) == ["confirmed"]
    assert not Hold.objects.exists()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("outcome", ["sending", "sent"])
def test_a_message_sent_then_comes_back_at_any_time(
    orders: Topic, operator: Principal, now: datetime, when: str, outcome: str
) -> None:
    (item,) = items = one_of_each(now, outcome)
    operation = earlier(operator, now, items)
    redrive = Redrive.objects.get()
    token = sign(redrive=redrive.pk, topic="orders", digest=item.poison.digest)

    if when == "after":
        convert_all()
    capture(now, failure(now, bookmark="9-0", redrive=token))
    convert_all()
    run(operation, now)

    assert counts_of(operation) == {"recurred": 1}
    assert states_of(items) == ["open"]
    assert Poison.objects.count() == 1
    assert not Hold.objects.exists()


@pytest.mark.parametrize("outcome", ["sent", "unknown"])
@pytest.mark.parametrize("answer", ["confirmed", "recurred"])
def test_an_answer_that_the_release_before_records_is_counted(
    orders: Topic, operator: Principal, now: datetime, outcome: str, answer: str
) -> None:
    items = one_of_each(now, outcome, outcome)
    operation = earlier(operator, now, items, window_size=1)
    convert_all()

    with session_of_the_release_before():
        execute(OLD_ANSWER, {"answer": answer, "now": now, "item": 0})

    assert counts_of(operation) == {answer: 1, outcome: 1}
    while run(operation, now) is SliceEnd.AGAIN:
        pass
    assert counts_of(operation) == {answer: 1, "sent": 1}
    if answer == "confirmed" and outcome == "unknown":
        assert states_of(items) == ["confirmed", "redriven"]


# Beside workers of the release before.


def test_an_operation_that_an_older_worker_runs_is_left_to_it(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    operation = earlier(operator, now, one_of_each(now, "sending", "waiting"))

    with advisory_locks.attempt(lock_name(operation.pk)):
        found_anything = earlier_layout_conversion.convert_next()
    due = orphaned_operations_and_expired_rows.orphans(now=now)
    ended = run(operation, now)

    assert not found_anything
    assert (due.to_run, ended) == ((), SliceEnd.DONE)
    operation.refresh_from_db()
    assert (operation.layout, operation.state) == (LAYOUT_BEFORE, "running")
    assert operation.items.count() == 0


def test_an_older_worker_runs_nothing_of_this_release(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    ours = confirm(operator, preview(operator, now), now)
    theirs = earlier(operator, now, one_of_each(now, *["waiting"] * 4), window_size=2)
    begins_theirs = execute(OLD_START, [theirs.pk])
    assert earlier_layout_conversion.convert_next(at_once=2)

    assert begins_theirs == 1
    assert execute(OLD_START, [ours.pk]) == 0
    assert execute(OLD_START, [theirs.pk]) == 0
    for operation, state in ((ours, "queued"), (theirs, "running")):
        operation.refresh_from_db()
        assert operation.state == state
    # A run that has lost its lock writes under the number that it had.
    assert theirs.epoch == 3


@pytest.mark.present
def test_a_preview_that_an_earlier_web_replaces_expires(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    replaced = preview(operator, now)

    assert execute(OLD_REPLACEMENT, {"operation": replaced.pk, "now": now}) == 1

    replaced.refresh_from_db()
    assert (replaced.state, replaced.finished_at) == ("preview", None)
    with pytest.raises(Stale, match="has expired"):
        confirm(operator, replaced, clock.now())


def test_what_this_release_holds_is_skipped_in_the_release_before(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, "waiting", "waiting")
    ours = confirm(operator, preview(operator, now, ids=(items[0].poison.pk,)), now)
    Broker.objects.update(url="redis://127.0.0.1:1/0")
    run(ours, now)
    theirs = earlier(operator, now, items, state=OperationState.PREVIEW)

    execute(OLD_CONFIRM, [theirs.pk])

    item_rows = rows("SELECT state, reason, held FROM triage_item ORDER BY id")
    holds = Hold.objects.order_by("operation").values_list("operation", "item", "n")
    assert item_rows == [
        ("skipped", f"operation {ours.pk} has it", False),
        ("waiting", "", True),
    ]
    assert list(holds) == [(ours.pk, 0, 1), (theirs.pk, None, 1)]


def test_what_the_release_before_holds_is_skipped_here_until_it_lets_go(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, "waiting", "waiting")
    seen_before = preview(operator, now)
    theirs = earlier(operator, now, items)
    holds = dict(Hold.objects.values_list("poison", "operation"))

    with pytest.raises(Stale, match=f"2 skipped, operation {theirs.pk} has it"):
        confirm(operator, seen_before, now)
    skipped = preview_summaries.summarize(operation=preview(operator, now)).skipped
    execute("UPDATE triage_item SET held = false WHERE state = 'waiting'")

    assert holds == dict.fromkeys((item.poison.pk for item in items), theirs.pk)
    assert skipped == ((f"operation {theirs.pk} has it", 2),)
    assert not Hold.objects.exists()


def test_a_preview_that_an_older_worker_took_is_one_of_the_release_before(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    ours = preview(operator, now, at_once=0)
    statement = """
    WITH item AS (
        INSERT INTO triage_item (operation_id, poison_id, state, reason, held)
        VALUES (%s, %s, 'waiting', '', false)
    )
    SELECT 1
    """
    execute(statement, [ours.pk, poison.pk])
    execute(
        "UPDATE triage_operation SET taken = true, total = 1 WHERE id = %s", [ours.pk]
    )

    operation = confirm(operator, ours, now)

    assert (operation.layout, operation.total, operation.will_act) == (LAYOUT, 1, 1)
    assert counts_of(operation) == {"waiting": 1}


def test_either_release_deletes_previews_of_both(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1)
    theirs = earlier(
        operator, now, one_of_each(now, "waiting"), state=OperationState.PREVIEW
    )
    ours = preview(operator, now)

    execute("DELETE FROM triage_operation WHERE id = %s", [ours.pk])
    pruned = orphaned_operations_and_expired_rows.prune(now=now + 2 * AN_HOUR)

    assert pruned.previews == 1
    assert not Operation.objects.filter(pk=theirs.pk).exists()
    assert not rows("SELECT FROM triage_item")
    assert not Item.objects.exists()


# People, while an operation is not converted.


def test_a_preview_of_the_release_before_is_converted_when_it_is_confirmed(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, "waiting", "skipped", "waiting")
    theirs = earlier(operator, now, items, state=OperationState.PREVIEW)

    nothing_asked = earlier_layout_conversion.convert_next()
    operation = confirm(operator, theirs, now)
    run(operation, now)

    assert not nothing_asked
    assert counts_of(operation) == {"sent": 2, "skipped": 1}
    assert len(sent_messages(stream)) == 2


def test_a_large_preview_of_the_release_before_is_converted_step_by_step(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    items = one_of_each(now, *["waiting"] * 5)
    theirs = earlier(operator, now, items, state=OperationState.PREVIEW, window_size=2)
    execute("UPDATE triage_operation SET layout = %s", [LAYOUT_IN_CONVERSION])
    earlier_layout_conversion.convert_next(at_once=2)
    theirs.refresh_from_db()
    assert not theirs.is_taken
    # The release before may still confirm what is left.
    execute(OLD_CONFIRM, [theirs.pk])
    execute("UPDATE triage_operation SET state = 'queued', confirmed_at = %s", [now])

    convert_all(at_once=2)

    assert not Hold.objects.exists()
    assert counts_of(theirs) == {"waiting": 5}
    assert theirs.judged == 0
    assert run(theirs, now) is SliceEnd.DONE
    assert counts_of(theirs) == {"sent": 5}


def test_an_untaken_preview_of_the_release_before_is_taken_here(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 2)
    theirs = earlier(operator, now, state=OperationState.PREVIEW, taken=False, total=0)

    with pytest.raises(NotTaken):
        confirm(operator, theirs, now)
    due = orphaned_operations_and_expired_rows.orphans(now=now)
    previews.take(operation_id=theirs.pk, now=now)

    assert due.to_take == (theirs.pk,)
    assert counts_of(confirm(operator, theirs, now)) == {"waiting": 2}


def test_an_operation_that_is_not_converted_cannot_be_changed_or_retried(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    running = earlier(operator, now, one_of_each(now, "waiting"))
    done = earlier(
        operator, now, one_of_each(now, "refused"), state=OperationState.DONE
    )

    with pytest.raises(NotConverted, match="made by the release before"):
        control.change_state(
            control.PAUSE,
            operation_id=running.pk,
            reason="",
            principal=operator,
            now=now,
        )
    with pytest.raises(NotConverted):
        control.set_rate(operation_id=running.pk, rate=1, principal=operator, now=now)
    retry = SelectionRequest(
        verb=Verb.REDRIVE, retry_of=done.pk, standings=("refused",)
    )
    with pytest.raises(NotConverted):
        previews.preview(selection=retry, principal=operator, now=now)


@pytest.mark.present
def test_pages_and_api_show_what_is_not_converted(
    plain_static_files: None, orders: Topic, operator: Principal, now: datetime
) -> None:
    anna = team.create_user(
        username="anna",
        password="a long password",
        role=Role.OPERATOR,
        reads_bodies=True,
        actor=operator.actor,
        now=now,
    )
    browser = Client()
    browser.force_login(anna)
    key = team.create_api_key(
        name="ci", scopes=[*Scope], topics=["*"], actor=operator.actor, now=now
    )
    script = Client(headers={"Authorization": f"Bearer {key.secret}"})
    done = OperationState.DONE
    operations = [
        earlier(operator, now, one_of_each(now, "waiting", "sent")),
        earlier(operator, now, one_of_each(now, "sent"), state=done),
        earlier(operator, now, one_of_each(now, "dropped"), verb=Verb.DROP, state=done),
    ]
    on_screen = earlier(
        operator, now, one_of_each(now, "waiting"), state=OperationState.PREVIEW
    )

    pages = [
        *("/", "/operations", f"/operations/preview?token={on_screen.token}"),
        *(f"/operations/{each.pk}" for each in operations),
    ]
    calls = [
        *("/api/v1/operations", f"/api/v1/operations/{operations[0].pk}/items"),
        *(f"/api/v1/operations/{each.pk}" for each in operations),
    ]

    assert {page: browser.get(page).status_code for page in pages} == dict.fromkeys(
        pages, 200
    )
    answers = {call: script.get(call) for call in calls}
    assert {call: each.status_code for call, each in answers.items()} == dict.fromkeys(
        calls, 200
    )
    assert answers[calls[2]].json()["counts"]["waiting"] == 2
