"""Operations that redrive stored poisons of 1 KiB, to measure what a redrive costs.

Import it inside `_benchmark_harness.product`, when Django is set up.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from apps.brokers.models import Topic
from apps.brokers.services import broker_registration
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.capture.intake import services as capture
from apps.capture.intake.occurrence import from_report
from apps.core import clock
from apps.core.actor import Actor
from apps.poison.query_language import Query
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.progress import counts_of
from apps.triage.services import confirm_and_undo, previews, running
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection_requests import SelectionRequest
from poisonguard.contract import Cause, FailureReport

BATCH = 500
ACTOR = Actor.system("bench")
PRINCIPAL = Principal(actor=ACTOR, scopes=frozenset(Scope))


def topic_on(*, kind: str, url: str, queue: str) -> Topic:
    """Register a benchmark's queue as the only topic of a broker of its own."""
    now = datetime.now(UTC)
    broker = broker_registration.add(
        name=f"{kind} {queue}",
        kind=kind,
        url=url,
        options={},
        principal=PRINCIPAL,
        now=now,
    )
    return brokers.register_topic(
        name=queue,
        broker=broker,
        dead_letter_queue=f"{queue}-poison",
        policy={},
        actor=ACTOR,
        now=now,
    )


def store_poisons(topic: Topic, *, group: str, number: int) -> None:
    """Store poisons of one consumer group, in batches as a guard sends them."""
    for start in range(0, number, BATCH):
        now = datetime.now(UTC)
        reports = [
            _report(topic, group, now) for _ in range(min(BATCH, number - start))
        ]
        occurrences = [from_report(report, topic=topic, now=now) for report in reports]
        capture.write(occurrences=occurrences, now=now)


def _report(topic: Topic, group: str, now: datetime) -> FailureReport:
    """Make a benchmark's failure report of a new message that has failed once."""
    return FailureReport(
        report_id=uuid.uuid4(),
        topic=topic.name,
        consumer_group=group,
        client_name="billing-1",
        bookmark=str(uuid.uuid4()),
        body=os.urandom(1024),
        headers=((b"trace", b"1"),),
        cause=Cause.EXHAUSTED,
        attempts=1,
        failures=1,
        crashes=0,
        first_failed_at=now,
        failed_at=now,
    )


def preview(verb: Verb, *, group: str) -> uuid.UUID:
    """Preview a benchmark's operation over a consumer group's poisons.

    Returns the preview's token.
    """
    selection = SelectionRequest(verb=verb, query=Query.parse(f"consumer:{group}"))
    preview = previews.preview(
        selection=selection, principal=PRINCIPAL, now=clock.now()
    )
    if not preview.taken:
        previews.take(operation_id=preview.pk, now=clock.now())
    assert preview.token is not None
    return preview.token


def queue_redrive(topic: Topic, *, number: int) -> int:
    """Store poisons, confirm an operation that redrives them, and return its id."""
    group = uuid.uuid4().hex
    store_poisons(topic, group=group, number=number)
    operation = confirm_and_undo.confirm(
        token=preview(Verb.REDRIVE, group=group),
        reason="bench",
        principal=PRINCIPAL,
        now=clock.now(),
    )
    return operation.pk


def run_to_its_end(operation_id: int) -> None:
    """Carry out a redrive operation completely, as workers do."""
    with RoutingPublisher() as publisher:
        end = SliceEnd.AGAIN
        while end is SliceEnd.AGAIN:
            end = running.run(
                operation_id=operation_id, publisher=publisher, clock=clock.now
            )


def redrive_next_of(operations: list[int]) -> Callable[[], None]:
    """Return a function that runs the next of these redrive operations to its end.

    The function raises AssertionError unless all messages were sent.
    """

    def redrive() -> None:
        operation_id = operations.pop()
        run_to_its_end(operation_id)
        # It is done, too, when the broker refuses all of them.
        operation = Operation.objects.get(pk=operation_id)
        counts = counts_of(operation)
        if counts["sent"] != operation.total:
            raise AssertionError(counts)

    return redrive
