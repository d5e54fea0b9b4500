"""States: what the tables of transitions forbid, and what Postgres forbids besides."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, models, transaction

from apps.poison import services, states
from apps.poison.models import Poison, Redrive
from apps.poison.states import NEXT, PoisonState, RedriveOutcome
from apps.triage import states as triage
from apps.triage.models import Item, Operation
from tests.reports import poisons

pytestmark = pytest.mark.django_db


def in_state(state: PoisonState, now: datetime) -> Poison:
    """Return a poison in this state, with the rows that belong to it."""
    (poison,) = poisons(now, 1)
    values: dict[str, Any] = {"state": state.value}
    if state not in {PoisonState.OPEN, PoisonState.DROPPED}:
        values |= {"redrives": 1, "sent_at": now}
    if state is PoisonState.DROPPED:
        values["dropped_at"] = now
    if state is PoisonState.MOVED:
        values["moved_to"] = poison.topic
    Poison.objects.filter(pk=poison.pk).update(**values)
    return poison


@pytest.mark.parametrize("verb", [services.drop, services.begin])
@pytest.mark.parametrize("origin", PoisonState)
def test_a_person_moves_a_poison_only_where_the_table_has_it(
    now: datetime, origin: PoisonState, verb: Callable[..., Collection[int]]
) -> None:
    poison = in_state(origin, now)
    target = PoisonState.DROPPED if verb is services.drop else PoisonState.REDRIVING
    more = {} if verb is services.drop else {"target": None, "epoch": 1}

    later = now + timedelta(minutes=11)  # by then a sent poison is silent
    moved = verb(poisons=[poison.pk], now=later, **more)

    poison.refresh_from_db()
    allowed = target in NEXT[origin]
    assert (len(moved), poison.state) == (int(allowed), target if allowed else origin)


@pytest.mark.parametrize("origin", PoisonState)
def test_a_restore_opens_only_what_is_dropped(
    now: datetime, origin: PoisonState
) -> None:
    poison = in_state(origin, now)

    opened = services.restore(poisons=[poison.pk])

    assert bool(opened) is (origin is PoisonState.DROPPED)


def test_every_state_has_one_of_the_four_display_states() -> None:
    words = [states.states_displayed_as(word) for word in states.DisplayState]

    assert sorted(itertools.chain(*words)) == sorted(PoisonState)


def test_every_outcome_and_item_state_is_counted() -> None:
    own = set(triage.ItemState) - {triage.ItemState.CLAIMED}

    assert sorted(triage.COUNTED) == sorted([*own, *RedriveOutcome])


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


def test_postgres_refuses_two_redrives_of_one_poison_in_flight(now: datetime) -> None:
    (poison,) = poisons(now, 1)
    redrive_of(poison, now)

    with pytest.raises(IntegrityError, match="one_in_flight"), transaction.atomic():
        redrive_of(poison, now, n=2)


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
        ("finished_has_finished_at", {"state": "cancelled"}),
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


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("item_state_is_known", {"state": "lost"}),
        ("claimed_has_a_redrive", {"state": "claimed"}),
        ("skipped_has_a_reason", {"state": "skipped"}),
        ("is_held_only_while_open", {"state": "dropped", "held": True}),
    ],
)
def test_postgres_refuses_an_impossible_item(
    now: datetime, name: str, values: dict[str, Any]
) -> None:
    (poison,) = poisons(now, 1)
    item = Item.objects.create(operation=operation(now), poison=poison)

    refused(name, Item.objects.filter(pk=item.pk), **values)


def test_postgres_lets_one_open_operation_hold_a_poison(now: datetime) -> None:
    (poison,) = poisons(now, 1)
    Item.objects.create(operation=operation(now), poison=poison, held=True)

    with pytest.raises(IntegrityError, match="one_open"), transaction.atomic():
        Item.objects.create(operation=operation(now), poison=poison, held=True)
