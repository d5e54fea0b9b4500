"""Concurrent triage: each message is sent once, and the loser gets the reason."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import pytest
from django.db import connection
from redis import Redis

from apps.audit import verification
from apps.brokers.adapter_contract import PublishOutcome
from apps.brokers.models import Topic
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.core import clock
from apps.core.actor import Actor
from apps.poison.models import Hold, Redrive
from apps.team.rights import Principal, Scope
from apps.triage.errors import Stale
from apps.triage.models import Operation, SkippedItem
from apps.triage.operation_states import OperationState, Verb
from apps.triage.progress import counts_of
from apps.triage.services import confirm_and_undo, previews, running
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from tests.failure_report_builders import poisons
from tests.races import together
from tests.triage_operation_runner import AwayPublisher

pytestmark = pytest.mark.django_db(transaction=True)

SOAK = "SOAK" in os.environ
ROUNDS, CLIENTS, MESSAGES = (50, 20, 10_000) if SOAK else (5, 8, 60)
CAPTURED_AT_ONCE = 1_000
PEOPLE = [
    Principal(actor=Actor.user(f"user{n}"), scopes=frozenset(Scope))
    for n in range(CLIENTS)
]


def requeue(who: Principal, ids: tuple[int, ...]) -> None:
    """Preview, confirm and run, as a person and a worker do."""
    now = clock.now()
    selection = SelectionRequest(verb=Verb.REDRIVE, ids=ids)
    preview = previews.preview(selection=selection, principal=who, now=now)
    try:
        confirm_and_undo.confirm(
            token=preview.token, reason="race", principal=who, now=now
        )
    except Stale:
        return  # everything was held by then: nothing is left for this one
    with RoutingPublisher() as publisher:
        ended = SliceEnd.AGAIN
        while ended is SliceEnd.AGAIN:
            ended = running.run(
                operation_id=preview.pk, publisher=publisher, clock=clock.now
            )


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_overlapping_operations_started_together_send_each_message_once(
    orders: Topic, stream: Redis, now: datetime, seed: int
) -> None:
    at_once = min(MESSAGES, CAPTURED_AT_ONCE)
    ids = [
        poison.pk
        for _ in range(0, MESSAGES, at_once)
        for poison in poisons(now, at_once)
    ]
    chance = random.Random(seed)
    shares = [tuple(chance.sample(ids, MESSAGES * 2 // 3)) for _ in PEOPLE]

    together(len(PEOPLE), lambda turn: requeue(PEOPLE[turn], shares[turn]))

    entries = cast(Any, stream.xrange("orders"))
    tokens = Counter(fields[b"x-poisonweb-redrive"] for _, fields in entries)
    number = len(set().union(*shares))
    assert (len(tokens), max(tokens.values())) == (number, 1)
    assert Redrive.objects.count() == number
    assert set(Redrive.objects.values_list("outcome", "copies")) == {("sent", 1)}
    assert not Hold.objects.exists()
    expect_ended_operations(sent_number=number)
    assert verification.verify().ok


def expect_ended_operations(*, sent_number: int) -> None:
    """All operations are done; their counts add up, to all messages together."""
    confirmed = Operation.objects.exclude(state=OperationState.PREVIEW)
    totals = Counter[str]()
    for operation in confirmed:
        counts = counts_of(operation)
        assert operation.state == OperationState.DONE
        assert counts["sent"] + counts["skipped"] == operation.total
        totals += counts
    assert totals["sent"] == sent_number


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_run_one_operation_together_send_each_message_once(
    orders: Topic,
    stream: Redis,
    now: datetime,
    seed: int,
) -> None:
    ids = tuple(poison.pk for poison in poisons(now, 60))
    preview = previews.preview(
        selection=SelectionRequest(verb=Verb.REDRIVE, ids=ids),
        principal=PEOPLE[0],
        now=now,
    )
    confirm_and_undo.confirm(
        token=preview.token, reason="", principal=PEOPLE[0], now=now
    )
    chance = random.Random(seed)
    pauses = [chance.uniform(0, 0.05) for _ in range(40)]
    publishing: list[int] = []
    most_at_once: list[int] = []

    class SlowPublisher(RoutingPublisher):
        """Counts how many workers publish at the same time."""

        def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
            publishing.append(1)
            most_at_once.append(len(publishing))
            time.sleep(pauses[len(most_at_once) % 40])
            try:
                return super().publish(messages)
            finally:
                publishing.pop()

    def work(_: int) -> None:
        with SlowPublisher() as publisher:
            while Operation.objects.filter(pk=preview.pk).exclude(
                state=OperationState.DONE
            ):
                running.run(
                    operation_id=preview.pk,
                    publisher=publisher,
                    clock=clock.now,
                    most=5,
                )

    together(4, work)

    entries = cast(Any, stream.xrange("orders"))
    tokens = {fields[b"x-poisonweb-redrive"] for _, fields in entries}
    assert len(tokens) == len(entries) == len(ids)
    assert max(most_at_once) == 1


def test_the_skipped_item_names_the_operation_that_holds_the_message(
    orders: Topic, now: datetime
) -> None:
    ids = tuple(poison.pk for poison in poisons(now, 50))
    late = previews.preview(
        selection=SelectionRequest(verb=Verb.REDRIVE, ids=ids),
        principal=PEOPLE[4],
        now=now,
    )

    def hold(turn: int) -> None:
        selection = SelectionRequest(
            verb=Verb.REDRIVE, ids=(*ids, ids[0] + 1000 + turn)
        )
        preview = previews.preview(selection=selection, principal=PEOPLE[turn], now=now)
        token = preview.token
        try:
            confirm_and_undo.confirm(
                token=token, reason="", principal=PEOPLE[turn], now=now
            )
        except Stale:
            connection.close()
            return
        with AwayPublisher() as publisher:
            running.run(operation_id=preview.pk, publisher=publisher, clock=lambda: now)

    together(4, hold)
    with pytest.raises(Stale) as refusal:
        confirm_and_undo.confirm(
            token=late.token, reason="", principal=PEOPLE[4], now=now
        )

    (winner,) = Operation.objects.unfinished()
    reasons = SkippedItem.objects.values_list("reason", flat=True)
    assert counts_of(winner)["waiting"] == Hold.objects.count() == len(ids)
    assert {re.sub(r"\D", "", reason) for reason in reasons} == {str(winner.pk)}
    assert f"50 skipped, operation {winner.pk} has it" in str(refusal.value)


def test_one_token_confirmed_by_many_at_once_is_one_operation(
    orders: Topic, now: datetime
) -> None:
    ids = tuple(poison.pk for poison in poisons(now, 5))
    selection = SelectionRequest(verb=Verb.REDRIVE, ids=ids)
    preview = previews.preview(selection=selection, principal=PEOPLE[0], now=now)
    outcomes: list[str] = []

    def confirm(_: int) -> None:
        try:
            confirm_and_undo.confirm(
                token=preview.token, reason="", principal=PEOPLE[0], now=now
            )
            outcomes.append("queued")
        except Stale:
            outcomes.append("stale")

    together(6, confirm)

    assert Counter(outcomes) == {"queued": 1, "stale": 5}
