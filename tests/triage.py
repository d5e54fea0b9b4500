"""Carry an operation from its preview to its end, as people and workers do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import cast

from redis import Redis

from apps.brokers.services.topics import RoutingPublisher
from apps.poison.models import Poison
from apps.poison.query import Query
from apps.poison.redrive_signatures import sign
from apps.poison.services import RedriveAnswer, begin, mark
from apps.poison.states import RedriveOutcome
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.services import decision, previews, running
from apps.triage.services.previews import SelectionRequest
from apps.triage.services.running import SliceEnd
from apps.triage.services.windows import WINDOW
from apps.triage.states import Verb

ALL = Query.parse("topic:orders")
MINUTE = timedelta(minutes=1)
Entries = list[tuple[bytes, dict[bytes, bytes]]]


def preview(
    who: Principal,
    now: datetime,
    *,
    at_once: int | None = None,
    **selection: object,
) -> Operation:
    selection.setdefault("verb", Verb.REDRIVE)
    if not {"ids", "query", "dropped_by"} & selection.keys():
        selection["query"] = ALL
    request = SelectionRequest(**selection)  # type: ignore[arg-type]
    return previews.preview(selection=request, principal=who, now=now, at_once=at_once)


def confirm(who: Principal, operation: Operation, now: datetime) -> Operation:
    return decision.confirm(
        token=operation.token, reason="a test", principal=who, now=now
    )


def run(
    operation: Operation,
    now: datetime,
    *,
    by: Callable[[], RoutingPublisher] = RoutingPublisher,
    window: int = WINDOW,
) -> SliceEnd:
    """Run an operation as a worker does, optionally with another publisher."""
    with by() as publisher:
        return running.run(
            operation_id=operation.pk,
            publisher=publisher,
            clock=lambda: now,
            window=window,
        )


def sent_messages(stream: Redis) -> list[dict[bytes, bytes]]:
    """Read the topic's messages, oldest first, as their fields."""
    return [fields for _, fields in cast(Entries, stream.xrange("orders"))]


def counts_of(operation: Operation) -> dict[str, int]:
    counts = operation.items.counts()
    assert sum(counts.values()) == operation.total
    return {name: number for name, number in counts.items() if number}


def redriven(poison: Poison, now: datetime) -> str:
    """Send a poison as an operation would, and return its redrive header."""
    (redrive,) = begin(poisons=[poison.pk], target=None, epoch=1, now=now).values()
    answer = RedriveAnswer(redrive=redrive, outcome=RedriveOutcome.SENT, bookmark="9-0")
    mark(poisons=[poison.pk], answers=[answer], epoch=1, now=now)
    return sign(redrive=redrive, topic="orders", digest=poison.digest)
