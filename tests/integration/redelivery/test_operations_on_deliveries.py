"""Operations on deliveries: the engine of messages, with verbs of their own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import count
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.core.errors import Forbidden, Invalid, Refused
from apps.poison.models import ItemWindow, Poison
from apps.redelivery.models import (
    CallCount,
    Delivery,
    DeliveryHold,
    DeliveryItem,
    Endpoint,
)
from apps.redelivery.services import (
    delivery_content_access,
    delivery_decisions,
    delivery_items,
)
from apps.redelivery.services.delivery_state_changes import LockedDeliveries
from apps.redelivery.services.request_acceptance import accept
from apps.triage.errors import Stale
from apps.triage.item_standings import standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import ItemKindName, Verb
from apps.triage.services import (
    confirm_and_undo,
    control,
    earlier_layout_conversion,
    message_audit_filter,
    orphaned_operations_and_expired_rows,
    preview_summaries,
    previews,
)
from apps.triage.services.pacing import Pacer
from apps.triage.services.previews import PREVIEW_LIVES
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest, SendLimits
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    BROKEN,
    DOWN,
    NOW,
    claim,
    end,
    endpoint,
    later,
    request,
)
from tests.lane_crash_simulation import Killed
from tests.triage_operation_runner import counts_of, run

pytestmark = pytest.mark.django_db

AT = later(1)


def waiting(of: Endpoint, number: int = 3) -> list[uuid.UUID]:
    """Store requests whose first try failed; return their ids in order."""
    news = [request(DOWN) for _ in range(number)]
    for new in news:
        accept(endpoint=of, new=new, now=NOW)
    return [new.id for new in news]


def dropped(
    number: int = 3, *, name: str = "stock-quote", **settings: Any
) -> list[uuid.UUID]:
    stock = endpoint(name, retries=0, at_end="drop", **settings)
    return waiting(stock, number)


def preview(
    verb: Verb,
    now: datetime = AT,
    *,
    at_once: int | None = None,
    rate: int | None = None,
    **params: str,
) -> Operation:
    selection = delivery_items.selection_of_matches(verb, params, rate=rate)
    return previews.preview(
        selection=selection, principal=ADMIN, now=now, at_once=at_once
    )


def confirmed(
    verb: Verb, now: datetime = AT, *, rate: int | None = None, **params: str
) -> Operation:
    selection = delivery_items.selection_of_matches(verb, params, rate=rate)
    return confirm(previews.preview(selection=selection, principal=ADMIN, now=now), now)


def confirm(operation: Operation, now: datetime = AT) -> Operation:
    return confirm_and_undo.confirm(
        token=operation.token, reason="a test", principal=ADMIN, now=now
    )


def in_small_windows(operation: Operation, size: int = 2) -> Operation:
    """Give a preview windows of so many items."""
    Operation.objects.filter(pk=operation.pk).update(window_size=size)
    operation.refresh_from_db()
    return operation


def states() -> list[str]:
    return list(Delivery.objects.order_by("pk").values_list("state", flat=True))


def reasons(operation: Operation) -> dict[str, int]:
    skipped = [
        each.explanation
        for each in standings_of(operation, standings=["skipped"], limit=100)
    ]
    return {reason: skipped.count(reason) for reason in skipped}


def trail() -> list[dict[str, Any]]:
    records = [json.loads(entry.record) for entry in Entry.objects.order_by("seq")]
    return [each for each in records if each["action"].startswith("operation.")]


# Preview and selection


def test_a_preview_freezes_what_matches_its_filter() -> None:
    stock, other = endpoint(), endpoint("other")
    ids = waiting(stock)
    waiting(other)

    operation = preview(Verb.TRY_NOW, endpoint="stock-quote", state="waiting")
    accept(endpoint=stock, new=request(DOWN, tried_at=later(2)), now=later(2))

    items = DeliveryItem.objects.filter(operation=operation).order_by("number")
    assert list(items.values_list("delivery", flat=True)) == ids
    assert (operation.kind, operation.query) == (
        "delivery",
        "endpoint=stock-quote&state=waiting",
    )
    summary = preview_summaries.summarize(operation=operation)
    assert (operation.total, summary.will_act, summary.newer) == (3, 3, 1)
    groups = {
        title: dict(largest.values) for title, largest in summary.breakdown.groups
    }
    assert groups == {
        "endpoint": {"stock-quote": 3},
        "last answer": {"no answer": 3},
        "age": {"under an hour": 3},
    }
    assert DeliveryHold.objects.count() == 0
    assert states() == ["waiting"] * 7


def test_a_preview_says_what_will_be_skipped_and_why() -> None:
    stock = endpoint()
    waiting(stock)
    claim(stock, at=100, most=1)
    dropped(1, name="dropper")

    operation = preview(Verb.TRY_NOW)

    assert operation.will_act == 2
    assert dict(preview_summaries.summarize(operation=operation).skipped) == {
        "a sender is trying it now": 1,
        "dropped: restore it first": 1,
    }


def test_a_worker_takes_a_large_preview() -> None:
    waiting(endpoint(), 5)

    operation = preview(Verb.TRY_NOW, at_once=2, state="waiting")
    assert (operation.is_taken, operation.total) == (False, 0)
    assert orphaned_operations_and_expired_rows.orphans(now=AT).to_take == (
        operation.pk,
    )

    # It comes before a worker takes them, but after the request.
    accept(
        endpoint=Endpoint.objects.get(),
        new=request(DOWN, tried_at=later(2)),
        now=later(2),
    )
    previews.take(operation_id=operation.pk, now=AT)

    operation.refresh_from_db()
    assert (operation.is_taken, operation.total, operation.will_act) == (True, 5, 5)


def test_a_preview_of_one_who_sees_no_endpoint_is_empty() -> None:
    waiting(endpoint())
    stranger = replace(ADMIN, topics=("orders",))
    selection = delivery_items.selection_of_matches(Verb.GIVE_UP, {})

    operation = previews.preview(selection=selection, principal=stranger, now=AT)

    assert operation.total == 0
    with pytest.raises(Stale, match="Nothing is left"):
        confirm_and_undo.confirm(
            token=operation.token, reason="mine?", principal=stranger, now=AT
        )
    assert states() == ["waiting"] * 3


@pytest.mark.parametrize(
    "params",
    [
        {"state": "' OR true --"},
        {"state": "open"},
        {"cause": "%s"},
        {"endpoint": "a" * 256},
        {"endpoint": "nul\x00"},
        {"since": "yesterday"},
        {"due": "9999-99-99"},
    ],
    ids=str,
)
def test_a_hostile_filter_is_refused(params: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        delivery_items.selection_of_matches(Verb.GIVE_UP, params)


@pytest.mark.parametrize("name", ["%(now)s", "'; DROP TABLE x --", "a=b&state=dropped"])
def test_a_filter_is_a_value_also_where_it_looks_like_more(name: str) -> None:
    waiting(endpoint())

    operation = preview(Verb.GIVE_UP, endpoint=name)

    assert operation.total == 0
    assert delivery_items.filter_of(operation) == {"endpoint": name}


@pytest.mark.parametrize(
    ("verb", "member"),
    [
        (Verb.DROP, {}),
        (Verb.REDRIVE, {}),
        (Verb.GIVE_UP, {"rate": 5}),
        (Verb.TRY_NOW, {"target_topic": "orders"}),
        (Verb.TRY_NOW, {"ordered": True}),
        (Verb.TRY_NOW, {"ids": (1,)}),
    ],
)
def test_what_is_only_for_messages_is_refused(
    verb: Verb, member: Mapping[str, object]
) -> None:
    with pytest.raises(Invalid):
        SelectionRequest(
            verb=verb,
            kind=ItemKindName.DELIVERY,
            filters="",
            **member,  # type: ignore[arg-type]
        )


def test_what_is_only_for_deliveries_is_refused_for_messages() -> None:
    with pytest.raises(Invalid, match="redrive, drop, restore"):
        SelectionRequest(verb=Verb.TRY_NOW, ids=(1,))


# The verbs


def test_try_now_makes_what_waits_due() -> None:
    stock = endpoint(interval=3_600.0)
    ids = waiting(stock)
    assert claim(stock, at=1) == []

    operation = confirmed(Verb.TRY_NOW, state="waiting")
    assert run(operation, AT) is SliceEnd.DONE

    assert counts_of(operation) == {"due": 3}
    assert sorted(each.id for each in claim(stock, at=1)) == ids
    assert set(Delivery.objects.values_list("retry_count", flat=True)) == {1}


def test_give_up_ends_each_as_its_endpoint_says_and_counts_it() -> None:
    waiting(endpoint(), 2)
    waiting(endpoint("drop", at_end="drop"), 1)

    operation = confirmed(Verb.GIVE_UP, state="waiting")
    run(operation, AT)

    assert counts_of(operation) == {"given_up": 3}
    assert states() == ["given_up", "given_up", "dropped"]
    assert set(Poison.objects.values_list("cause", flat=True)) == {"manual"}
    assert sum(CallCount.objects.values_list("given_up", flat=True)) == 3


def test_restore_begins_the_plans_of_dropped_ones_again() -> None:
    ids = dropped(2, expiry=60.0)
    waiting(endpoint("forever", retries=3, expiry=None), 1)

    operation = confirmed(Verb.RESTORE, later(100), state="dropped")
    run(operation, later(100))

    assert counts_of(operation) == {"restored": 2}
    for delivery in Delivery.objects.filter(pk__in=ids):
        assert (delivery.state, delivery.retry_count) == ("waiting", 0)
        assert (delivery.due_at, delivery.expires_at) == (later(100), later(160))
        assert (delivery.cause, delivery.finished_at) == ("", None)


def test_a_restored_delivery_of_an_endpoint_without_expiry_expires_at_no_time() -> None:
    dropped(1)

    run(confirmed(Verb.RESTORE, state="dropped"), AT)

    assert Delivery.objects.get().expires_at is None


def test_a_reason_is_needed_to_give_up() -> None:
    waiting(endpoint())
    operation = preview(Verb.GIVE_UP)

    with pytest.raises(Invalid, match="say why"):
        confirm_and_undo.confirm(
            token=operation.token, reason=" ", principal=ADMIN, now=AT
        )


def test_only_who_may_decide_previews() -> None:
    selection = delivery_items.selection_of_matches(Verb.TRY_NOW, {})
    reader = replace(ADMIN, scopes=frozenset())

    with pytest.raises(Forbidden):
        previews.preview(selection=selection, principal=reader, now=AT)


# What changes between confirmation and the act


def test_what_a_sender_tries_when_its_turn_comes_is_skipped() -> None:
    stock = endpoint()
    waiting(stock)
    operation = confirmed(Verb.GIVE_UP, state="waiting")
    tried = claim(stock, at=100, most=1)

    run(operation, later(100))

    assert counts_of(operation) == {"given_up": 2, "skipped": 1}
    assert reasons(operation) == {"a sender is trying it now": 1}
    assert Delivery.objects.get(pk=tried[0].id).state == "trying"
    assert end(stock, tried[0], BROKEN, at=100)


def test_what_is_delivered_or_deleted_meanwhile_is_skipped() -> None:
    stock = endpoint()
    deleted, handled, _ = waiting(stock)
    operation = confirmed(Verb.TRY_NOW, state="waiting")
    Delivery.objects.filter(pk=handled).update(state="delivered", finished_at=AT)
    Delivery.objects.filter(pk=deleted).delete()

    run(operation, AT)

    assert counts_of(operation) == {"due": 1, "skipped": 2}
    assert reasons(operation) == {delivery_items.DELETED: 1, "already delivered": 1}


def test_what_is_deleted_before_it_is_judged_is_skipped() -> None:
    ids = dropped(2)
    operation = preview(Verb.RESTORE)
    Delivery.objects.filter(pk=ids[0]).delete()

    confirm(operation)
    run(operation, AT)

    assert counts_of(operation) == {"restored": 1, "skipped": 1}
    assert reasons(operation) == {delivery_items.DELETED: 1}


# Holds


def test_a_delivery_has_one_open_operation() -> None:
    ids = waiting(endpoint())
    both = [preview(Verb.TRY_NOW), preview(Verb.GIVE_UP)]
    first = confirm(both[0])

    with pytest.raises(Stale, match=f"operation {first.pk} has it"):
        confirm(both[1])

    assert list(
        DeliveryHold.objects.order_by("item").values_list("delivery", "operation")
    ) == [(pk, first.pk) for pk in ids]
    run(first, AT)
    assert DeliveryHold.objects.count() == 0
    assert states() == ["waiting"] * 3


def test_of_two_operations_that_overlap_the_second_skips_what_the_first_has() -> None:
    waiting(endpoint(), 2)
    first = confirmed(Verb.TRY_NOW, endpoint="stock-quote")
    waiting(endpoint("other"), 1)

    second = confirmed(Verb.GIVE_UP)
    run(second, AT)

    assert counts_of(second) == {"given_up": 1, "skipped": 2}
    assert reasons(second) == {f"operation {first.pk} has it": 2}
    run(first, AT)
    assert counts_of(first) == {"due": 2}


def test_of_two_earlier_previews_the_later_confirmed_one_names_the_other() -> None:
    waiting(endpoint(), 2)
    waiting(endpoint("other"), 1)
    first, second = preview(Verb.TRY_NOW, endpoint="stock-quote"), preview(Verb.GIVE_UP)
    confirm(first)

    confirm(second)

    assert reasons(second) == {f"operation {first.pk} has it": 2}
    assert DeliveryHold.objects.filter(operation=second.pk).count() == 1


def test_the_key_of_a_hold_keeps_two_operations_apart() -> None:
    (pk,) = waiting(endpoint(), 1)
    DeliveryHold.objects.create(delivery_id=pk, operation=71, item=0)

    with pytest.raises(Exception, match="redelivery_hold_pkey"), transaction.atomic():
        DeliveryHold.objects.bulk_create(
            [DeliveryHold(delivery_id=pk, operation=72, item=0)]
        )


@pytest.mark.parametrize(
    "decide", [delivery_decisions.retry_now, delivery_decisions.give_up]
)
def test_a_single_decision_leaves_what_an_operation_has(
    decide: Callable[..., int],
) -> None:
    ids = waiting(endpoint())
    operation = confirmed(Verb.TRY_NOW)

    assert decide(ids=ids, principal=ADMIN, reason="late", now=AT) == 0
    run(operation, AT)
    assert decide(ids=ids, principal=ADMIN, reason="late", now=AT) == 3


# Windows, pauses, cancels, and dead workers


def at_act(
    number: int, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]
) -> None:
    """Have something happen at the end of the act of this number, from 1."""
    act, acts = LockedDeliveries.make_due, count(1)

    def make_due(self: LockedDeliveries, *, now: datetime) -> None:
        act(self, now=now)
        if next(acts) == number:
            happens()

    monkeypatch.setattr(LockedDeliveries, "make_due", make_due)


def test_a_worker_killed_in_a_window_leaves_nothing_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting(endpoint(interval=3_600.0), 5)
    operation = confirm(in_small_windows(preview(Verb.TRY_NOW)))

    def die() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        at_act(2, patch, die)
        with pytest.raises(Killed):
            run(operation, AT)

    assert counts_of(operation) == {"due": 2, "waiting": 3}
    assert Delivery.objects.filter(due_at=AT).count() == 2
    assert DeliveryHold.objects.count() == 3
    assert operation.pk in orphaned_operations_and_expired_rows.orphans(now=AT).to_run

    assert run(operation, AT) is SliceEnd.DONE
    assert counts_of(operation) == {"due": 5}
    assert Delivery.objects.filter(due_at=AT).count() == 5
    assert DeliveryHold.objects.count() == 0


def test_a_run_that_was_taken_over_acts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting(endpoint(interval=3_600.0), 5)
    operation = confirm(in_small_windows(preview(Verb.TRY_NOW)))
    taken_over = Operation.objects.filter(pk=operation.pk)

    at_act(1, monkeypatch, lambda: taken_over.update(run=F("run") + 1))

    assert run(operation, AT) is SliceEnd.ELSEWHERE
    assert counts_of(operation) == {"due": 2, "waiting": 3}


def test_a_pause_holds_from_the_next_window_on_and_a_resume_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting(endpoint(), 5)
    operation = confirm(in_small_windows(preview(Verb.TRY_NOW)))

    with monkeypatch.context() as patch:
        at_act(1, patch, lambda: changed(operation, control.PAUSE))
        assert run(operation, AT) is SliceEnd.LATER

    assert counts_of(operation) == {"due": 2, "waiting": 3}
    assert DeliveryHold.objects.filter(operation=operation.pk).count() == 3
    assert (operation.state, run(operation, AT)) == ("paused", SliceEnd.DONE)
    assert counts_of(operation) == {"due": 2, "waiting": 3}

    changed(operation, control.RESUME)
    assert run(operation, AT) is SliceEnd.DONE
    assert counts_of(operation) == {"due": 5}


def test_a_cancel_frees_what_it_did_not_act_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = waiting(endpoint(interval=3_600.0), 5)
    operation = confirm(in_small_windows(preview(Verb.TRY_NOW), size=4))
    at_act(1, monkeypatch, lambda: changed(operation, control.CANCEL))

    run(operation, AT, most=1)
    assert run(operation, AT) is SliceEnd.DONE

    operation.refresh_from_db()
    assert operation.state == "cancelled"
    assert counts_of(operation) == {"due": 1, "waiting": 4}
    assert [each.standing for each in standings_of(operation, limit=9)] == [
        "due",
        *["waiting"] * 4,
    ]
    assert (
        list(Delivery.objects.filter(due_at=AT).values_list("pk", flat=True)) == ids[:1]
    )
    assert DeliveryHold.objects.count() == 0
    # Another operation may have them now.
    again = confirmed(Verb.TRY_NOW)
    assert DeliveryHold.objects.filter(operation=again.pk).count() == 5


def changed(operation: Operation, step: control.ControlStep) -> Operation:
    return control.change_state(
        step, operation_id=operation.pk, reason="", principal=ADMIN, now=AT
    )


def test_a_rate_lets_so_many_be_tried_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(endpoint(interval=3_600.0), 5)
    operation = confirmed(Verb.TRY_NOW, rate=50)
    sizes, waits = list[int](), list[int]()
    act = LockedDeliveries.make_due

    def make_due(self: LockedDeliveries, *, now: datetime) -> None:
        sizes.append(len(self.states))
        act(self, now=now)

    monkeypatch.setattr(LockedDeliveries, "make_due", make_due)
    monkeypatch.setattr(Pacer, "wait", lambda _, number: waits.append(number))

    run(operation, AT)

    assert (sizes, waits) == ([2, 2, 1], [2, 2, 2, 2])


def test_the_rate_of_what_is_tried_can_be_changed_but_not_that_of_a_give_up() -> None:
    waiting(endpoint())
    waiting(endpoint("other"))
    tries = confirmed(Verb.TRY_NOW, endpoint="stock-quote", rate=1)
    ends = confirmed(Verb.GIVE_UP, endpoint="other")

    def set_rate(operation: Operation) -> Operation:
        return control.set_rate(
            operation_id=operation.pk, rate=7, principal=ADMIN, now=AT
        )

    assert set_rate(tries).rate == 7
    with pytest.raises(Refused, match="sends nothing"):
        set_rate(ends)


def test_a_confirmation_may_set_the_rate() -> None:
    waiting(endpoint())
    operation = preview(Verb.TRY_NOW)

    confirm_and_undo.confirm(
        token=operation.token,
        reason="",
        principal=ADMIN,
        now=AT,
        limits=SendLimits(rate=3),
    )

    operation.refresh_from_db()
    assert operation.rate == 3


def test_a_worker_of_the_release_before_leaves_them_alone() -> None:
    waiting(endpoint())
    operation = confirmed(Verb.TRY_NOW)

    # It takes layout 2 alone, and converts 0 and 1.
    assert operation.layout not in {0, 1, 2}
    assert not earlier_layout_conversion.convert_next()


def test_a_large_operation_is_judged_by_its_worker() -> None:
    waiting(endpoint(), 3)
    operation = preview(Verb.TRY_NOW)
    Operation.objects.filter(pk=operation.pk).update(
        total=confirm_and_undo.JUDGED_AT_ONCE + 1
    )

    confirm(operation)
    assert DeliveryHold.objects.count() == 0
    Operation.objects.filter(pk=operation.pk).update(total=3)
    run(operation, AT)

    assert counts_of(operation) == {"due": 3}


# Previews that end, and the trail


def test_a_preview_that_expired_is_pruned_with_its_items() -> None:
    waiting(endpoint())
    operation = preview(Verb.TRY_NOW)

    pruned = orphaned_operations_and_expired_rows.prune(now=AT + PREVIEW_LIVES)

    assert pruned.previews == 1
    assert not DeliveryItem.objects.filter(operation=operation.pk).exists()


def test_a_refused_confirmation_makes_a_preview_of_the_same() -> None:
    waiting(endpoint())
    operation = preview(Verb.TRY_NOW, rate=9, endpoint="stock-quote")

    with pytest.raises(Stale) as refusal:
        confirm(operation, AT + PREVIEW_LIVES)

    again = refusal.value.new_preview
    assert again is not None
    assert (again.kind, again.verb, again.query, again.rate, again.total) == (
        "delivery",
        "try_now",
        "endpoint=stock-quote",
        9,
        3,
    )


def test_the_trail_has_the_decision_and_its_end_once() -> None:
    (pk,) = waiting(endpoint(), 1)
    operation = confirmed(Verb.GIVE_UP, state="waiting")
    run(operation, AT)

    decision, its_end = trail()
    assert (decision["action"], its_end["action"]) == (
        "operation.confirmed",
        "operation.finished",
    )
    assert decision["subject"] == f"operation:{operation.pk}"
    assert (decision["actor"], decision["reason"]) == ("user:anna", "a test")
    assert decision["detail"] == {
        "verb": "give_up",
        "items": "delivery",
        "query": "state=waiting",
        "as_of": AT.isoformat(),
        "total": 1,
        "will_act": 1,
        "target_topic": None,
        "undo_of": None,
        "delivery": str(pk),
    }
    assert its_end["detail"]["counts"] == {"given_up": 1}


def test_the_trail_of_a_delivery_has_the_operations_on_it() -> None:
    pk, _ = waiting(endpoint(), 2)
    operation = confirmed(Verb.TRY_NOW)
    preview(Verb.GIVE_UP)

    trail_filter = message_audit_filter.parse({"subject": f"delivery:{pk}"})

    assert trail_filter.operations == (f"operation:{operation.pk}",)
    delivery = Delivery.objects.get(pk=pk)
    entries = delivery_content_access.entries(delivery)
    assert [each.subject for each in entries] == [f"operation:{operation.pk}"]


# What it costs


def test_a_window_is_written_by_a_few_statements_however_many_it_has() -> None:
    waiting(endpoint(), 2)
    waiting(endpoint("other"), 40)
    few = confirmed(Verb.TRY_NOW, endpoint="stock-quote")
    many = confirmed(Verb.TRY_NOW, endpoint="other")

    numbers = []
    for operation in (few, many):
        with CaptureQueriesContext(connection) as queries:
            run(operation, AT)
        numbers.append(len(queries))

    assert numbers[0] == numbers[1]
    assert {window.state for window in ItemWindow.objects.all()} == {"done"}
