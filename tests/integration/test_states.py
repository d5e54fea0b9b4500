"""States: what the tables of transitions forbid, and what Postgres forbids besides."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, models, transaction

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.poison import states
from apps.poison.models import Hold, ItemWindow, Poison, Redrive
from apps.poison.services import drop_restore_and_give_back
from apps.poison.states import NEXT, PoisonState, RedriveOutcome
from apps.team.rights import Principal
from apps.triage import operation_states as triage
from apps.triage.models import Operation, SkippedItem
from apps.triage.operation_states import Verb
from tests.failure_report_builders import poisons
from tests.triage_operation_runner import AwayPublisher, confirm, preview, run

pytestmark = pytest.mark.django_db


SENT = set(PoisonState) - {PoisonState.OPEN, PoisonState.DROPPED}


class TakesAll(RoutingPublisher):
    """Stands for a broker that takes each message."""

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        return [PublishOutcome(kind=OutcomeKind.SENT)] * len(messages)


def in_state(state: PoisonState, now: datetime) -> Poison:
    """Return a poison in this state, with the rows that belong to it."""
    (poison,) = poisons(now, 1)
    values: dict[str, Any] = {"state": state.value}
    if state in SENT:
        values |= {"redrives": 1, "sent_at": now}
    if state is PoisonState.DROPPED:
        values["dropped_at"] = now
    if state is PoisonState.MOVED:
        values["moved_to"] = poison.topic
    Poison.objects.filter(pk=poison.pk).update(**values)
    return poison


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", [Verb.DROP, Verb.REDRIVE])
@pytest.mark.parametrize("origin", PoisonState)
def test_a_person_moves_a_poison_only_where_the_table_has_it(
    operator: Principal, now: datetime, origin: PoisonState, verb: Verb
) -> None:
    poison, _ = in_state(origin, now), in_state(PoisonState.OPEN, now)
    target = PoisonState.DROPPED if verb is Verb.DROP else PoisonState.REDRIVEN
    later = now + timedelta(minutes=11)  # by then a sent poison is silent

    operation = preview(operator, later, verb=verb)
    run(confirm(operator, operation, later), later, by=TakesAll)

    poison.refresh_from_db()
    # What the release before is sending, it moves on.
    allowed = target in NEXT[origin] and origin is not PoisonState.REDRIVING
    acted_on = operation.items.not_skipped().filter(poison=poison)
    assert (acted_on.exists(), poison.state) == (allowed, target if allowed else origin)
    assert poison.redrives == int(origin in SENT) + int(
        allowed and verb is Verb.REDRIVE
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("origin", PoisonState)
def test_a_poison_that_an_operation_may_send_is_not_dropped(
    operator: Principal, now: datetime, origin: PoisonState
) -> None:
    poison = in_state(origin, now)
    in_state(PoisonState.OPEN, now)
    later = now + timedelta(minutes=11)
    sending = confirm(operator, preview(operator, later), later)
    run(sending, later, by=AwayPublisher)

    dropped = drop_restore_and_give_back.drop(poisons=[poison.pk], now=later)

    is_held = Hold.objects.filter(poison=poison, operation=sending.pk).exists()
    assert is_held is (origin in {PoisonState.OPEN, PoisonState.REDRIVEN})
    assert dropped == set()


@pytest.mark.parametrize("origin", PoisonState)
def test_a_restore_opens_only_what_is_dropped(
    now: datetime, origin: PoisonState
) -> None:
    poison = in_state(origin, now)

    opened = drop_restore_and_give_back.restore(poisons=[poison.pk])

    assert bool(opened) is (origin is PoisonState.DROPPED)


def test_every_state_has_one_of_the_four_display_states() -> None:
    words = [states.states_displayed_as(word) for word in states.DisplayState]

    assert sorted(itertools.chain(*words)) == sorted(PoisonState)


def test_every_outcome_and_item_state_is_counted() -> None:
    assert sorted(triage.STANDINGS) == sorted([*triage.ItemState, *RedriveOutcome])
    counted = set(triage.STANDINGS) - {triage.ItemState.WAITING.value}
    assert counted < {field.name for field in ItemWindow._meta.get_fields()}


IMPOSSIBLE_POISONS: dict[str, dict[str, Any]] = {
    "poison_state_is_known": {"state": "lost", "redrives": 1},
    "poison_dropped_has_dropped_at": {"state": "dropped"},
    "poison_moved_has_moved_to": {"state": "moved", "redrives": 1},
    "poison_redriven_has_sent_at": {"state": "redriven", "redrives": 1},
    "poison_sent_was_redriven": {"state": "redriving"},
    "poison_recurs_once_a_redrive": {"recurrences": 1},
    "poison_failed_in_order": {"first_failed_at": "later"},
}


def refused(name: str, rows: models.QuerySet[Any], **values: Any) -> None:
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        rows.update(**values)


@pytest.mark.parametrize("name", IMPOSSIBLE_POISONS)
def test_postgres_refuses_an_impossible_poison(now: datetime, name: str) -> None:
    (poison,) = poisons(now, 1)
    values = {**IMPOSSIBLE_POISONS[name]}
    if name == "poison_failed_in_order":
        values["first_failed_at"] = now.replace(year=2100)
    if name == "poison_moved_has_moved_to":
        values["sent_at"] = now

    refused(name, Poison.objects.filter(pk=poison.pk), **values)


def redrive_of(poison: Poison, now: datetime, **values: Any) -> Redrive:
    return Redrive.objects.create(
        id=uuid.uuid4(),
        poison=poison,
        topic=poison.topic,
        claimed_at=now,
        **{"n": 1, "epoch": 1, **values},
    )


def test_postgres_lets_one_operation_send_a_poison_under_one_number(
    now: datetime,
) -> None:
    (poison,) = poisons(now, 1)
    hold_of(poison)
    redrive_of(poison, now)

    with pytest.raises(IntegrityError, match="poison_hold_pkey"), transaction.atomic():
        hold_of(poison, operation=2, item=1)
    with pytest.raises(IntegrityError, match="n_once"), transaction.atomic():
        redrive_of(poison, now)


def test_postgres_lets_an_item_hold_one_poison(now: datetime) -> None:
    first, second = poisons(now, 2)
    hold_of(first)

    with pytest.raises(IntegrityError, match="item_once"), transaction.atomic():
        hold_of(second)


def hold_of(poison: Poison, **values: Any) -> Hold:
    defaults = {"operation": 1, "item": 0, "n": 1}
    return Hold.objects.create(
        poison=poison, topic_id=poison.topic_id, **{**defaults, **values}
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("poison_redrive_outcome_is_known", {"outcome": "lost"}),
        ("poison_redrive_sent_has_sent_at", {"outcome": "sent"}),
        ("poison_redrive_answer_has_a_time", {"answered_at": "now"}),
    ],
)
def test_postgres_refuses_an_impossible_redrive(
    now: datetime, name: str, values: dict[str, Any]
) -> None:
    redrive = redrive_of(poisons(now, 1)[0], now)
    if name == "poison_redrive_outcome_is_known":
        values = {**values, "sent_at": now}

    refused(
        name,
        Redrive.objects.filter(pk=redrive.pk),
        **{k: now if v == "now" else v for k, v in values.items()},
    )


def operation(now: datetime, **values: Any) -> Operation:
    return Operation.objects.create(
        **{
            "verb": "drop",
            "actor": "user:anna",
            "source": "ui",
            "topics": ["*"],
            "created_at": now,
            "expires_at": now,
            **values,
        }
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("verb_is_known", {"verb": "shred"}),
        ("state_is_known", {"state": "lost", "confirmed_at": None}),
        ("confirmed_has_confirmed_at", {"state": "queued", "reason": "x"}),
        (
            "finished_has_finished_at",
            {"state": "cancelled", "reason": "x", "confirmed": True},
        ),
        ("drop_has_a_reason", {"state": "queued", "taken": True, "confirmed": True}),
        ("only_a_redrive_has_a_target", {"target": True}),
    ],
)
def test_postgres_refuses_an_impossible_operation(
    now: datetime, name: str, values: dict[str, Any]
) -> None:
    row = operation(now)
    values = dict(values)
    if values.pop("confirmed", False):
        values["confirmed_at"] = now
    if values.pop("target", False):
        values["target_topic"] = poisons(now, 1)[0].topic

    refused(name, Operation.objects.filter(pk=row.pk), **values)


def test_postgres_refuses_a_skipped_item_without_a_reason(now: datetime) -> None:
    skipped = SkippedItem(operation=operation(now), number=0, reason="")

    with pytest.raises(IntegrityError, match="has_a_reason"), transaction.atomic():
        skipped.save(force_insert=True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("window_state_is_known", {"state": "lost"}),
        ("counts_an_item_once", {"sent": 1, "skipped": 2}),
    ],
)
def test_postgres_refuses_an_impossible_window(
    name: str, values: dict[str, Any]
) -> None:
    ItemWindow.objects.create(operation=1, first=0, items=2)

    refused(name, ItemWindow.objects.all(), **values)
