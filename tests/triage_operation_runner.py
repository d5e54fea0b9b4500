"""Carry an operation from its preview to its end, as people and workers do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import cast

from django.db import transaction
from redis import Redis

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.poison.models import Poison
from apps.poison.query_language import Query
from apps.poison.redrive_signatures import sign
from apps.poison.services import redrive_confirmations_by_token, sends
from apps.poison.services.sends import Send
from apps.poison.states import RedriveOutcome
from apps.team.rights import Principal
from apps.triage.models import WINDOW_SIZE, Operation
from apps.triage.operation_states import Verb
from apps.triage.progress import counts_of as counts_by_standing
from apps.triage.services import confirm_and_undo, control, previews, running
from apps.triage.services.control import ControlStep
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from tests.failure_report_builders import capture, failure
from tests.lane_crash_simulation import Killed

ALL = Query.parse("topic:orders")
MINUTE = timedelta(minutes=1)
OF_NO_OPERATION = 2**40
Entries = list[tuple[bytes, dict[bytes, bytes]]]


class AwayPublisher(RoutingPublisher):
    """Reaches no broker, so that what is to be sent stays held."""

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        return [PublishOutcome(kind=OutcomeKind.UNSENT, detail="away")] * len(messages)


class DyingPublisher(RoutingPublisher):
    """Publishes, and dies before any of it is stored."""

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        super().publish(messages)
        raise Killed


def preview(
    who: Principal,
    now: datetime,
    *,
    at_once: int | None = None,
    **selection: object,
) -> Operation:
    selection.setdefault("verb", Verb.REDRIVE)
    if not {"ids", "query", "dropped_by", "retry_of"} & selection.keys():
        selection["query"] = ALL
    request = SelectionRequest(**selection)  # type: ignore[arg-type]
    return previews.preview(selection=request, principal=who, now=now, at_once=at_once)


def confirm(who: Principal, operation: Operation, now: datetime) -> Operation:
    return confirm_and_undo.confirm(
        token=operation.token, reason="a test", principal=who, now=now
    )


def run(
    operation: Operation,
    now: datetime | Iterator[datetime],
    *,
    by: Callable[[], RoutingPublisher] = RoutingPublisher,
    most: int = WINDOW_SIZE,
) -> SliceEnd:
    """Run an operation as a worker does, optionally with another publisher.

    Given times, each look at the clock takes the next one.
    """
    times = repeat(now) if isinstance(now, datetime) else now
    with by() as publisher:
        return running.run(
            operation_id=operation.pk,
            publisher=publisher,
            clock=lambda: next(times),
            most=most,
        )


def sent_messages(stream: Redis) -> list[dict[bytes, bytes]]:
    """Read the topic's messages, oldest first, as their fields."""
    return [fields for _, fields in cast(Entries, stream.xrange("orders"))]


def counts_of(operation: Operation) -> dict[str, int]:
    operation.refresh_from_db()
    counts = counts_by_standing(operation)
    assert sum(counts.values()) == operation.total
    return {name: number for name, number in counts.items() if number}


def redriven(poison: Poison, now: datetime) -> str:
    """Send a poison as an operation would, and return its redrive header."""
    poison.refresh_from_db()
    send = Send(
        poison=poison.pk,
        operation=OF_NO_OPERATION,
        item=0,
        n=poison.redrives + 1,
        redrive=uuid.uuid4(),
        topic=poison.topic_id,
        queue="",
        digest=None,
        copies=1,
        claimed_at=now,
        outcome=RedriveOutcome.SENT,
        bookmark="9-0",
    )
    with transaction.atomic():
        sends.mark(sends=[send], run=1, now=now)
    return sign(redrive=send.redrive, topic="orders", digest=poison.digest)


def change(
    step: ControlStep, operation: Operation, who: Principal, now: datetime
) -> Operation:
    """Pause, resume or cancel an operation, as a person with a reason does."""
    return control.change_state(
        step, operation_id=operation.pk, reason="a test", principal=who, now=now
    )


def answer(stream: Redis, now: datetime, *, failing: Sequence[int] = ()) -> None:
    """Answer all messages of the topic: those with these places have failed again."""
    for place, fields in enumerate(sent_messages(stream)):
        token = fields[b"x-poisonweb-redrive"].decode()
        if place in failing:
            capture(now, failure(now, bookmark=f"{place}-9", redrive=token))
        else:
            redrive_confirmations_by_token.confirm(tokens=[(token, "orders")], now=now)
