"""Write planned days to Postgres, by the same services as real ones.

A day with all its later steps is one transaction: it is written whole or not at all,
and its messages become visible in their last state. No message is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import Any

from django.db import connection, transaction

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.capture.intake import services as capture
from apps.capture.intake.occurrence import Occurrence, from_report
from apps.capture.intake.services import CaptureStatus
from apps.core.actor import Actor
from apps.poison import redrive_signatures
from apps.poison.models import Problem, Redrive
from apps.poison.query_language import Query, Term
from apps.poison.services import redrive_confirmations_by_token
from apps.reports.report_run_states import DeliveredSource
from apps.team.rights import Principal, Scope
from apps.triage.models import Item, Operation
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, running
from apps.triage.services.previews import PREVIEW_LIVES
from apps.triage.services.running import SliceEnd
from poisonweb.sample.history import consumer_reports
from poisonweb.sample.history.daily_failure_plan import (
    SLOT,
    ClientCounts,
    DayPlan,
    PlannedStep,
    Poisoned,
    StepKind,
)
from poisonweb.sample.history.traffic_streams_and_faults import STREAMS

SAMPLE = Principal(
    actor=Actor.system("sample"), scopes=frozenset(Scope), source="system"
)
HOURS_OF_A_BATCH = 4
PREVIEW_AGE = timedelta(minutes=1)
COUNTS_OF_A_DAY = 10_000


class UnexpectedResult(Exception):
    """A service did not do what the plan of the history expects."""


def written_days() -> set[date]:
    """Return the days of the sample's history that are written already."""
    operations = Operation.objects.filter(actor=str(SAMPLE.actor))
    queries = set(operations.exclude(query=None).values_list("query", flat=True))
    days = {Query.parse(query or "").value_of("day") for query in queries}
    return {date.fromisoformat(day) for day in days if day}


@transaction.atomic
def write(day: DayPlan, *, number: int) -> None:
    """Write a day of the sample's history; `number` tells its counters from others.

    Every start writes a day without a decision again, which changes nothing.
    """
    _Writer(day).write(number)


class _Writer:
    def __init__(self, day: DayPlan) -> None:
        self.day = day
        self.topics = brokers.topics_named(names={each.topic for each in STREAMS})
        self.ids: dict[Poisoned, int] = {}
        self.tokens: dict[Poisoned, str] = {}

    def write(self, number: int) -> None:
        """Write a day of the sample's history: failures, counters, decisions."""
        self._lock_problems()
        for _, poisons in groupby(self.day.poisons, key=_batch_of):
            self._capture(tuple(poisons))
        self._store_counts(number)
        for step in self.day.steps:
            self._apply(step)

    def _lock_problems(self) -> None:
        """Lock the rows of the sample's problems in order, as captures do."""
        # Lanes lock problems too: locking all of them at once avoids deadlocks.
        ours = Problem.objects.filter(topic__in=self.topics.values()).order_by("pk")
        list(ours.select_for_update(no_key=True).values_list("pk"))

    def _capture(self, poisons: Sequence[Poisoned]) -> None:
        """Capture the sample's planned failures, and remember their poisons' ids."""
        now = poisons[-1].failed_at
        answers = capture.write(
            occurrences=[self._occurrence(p, at=p.failed_at, now=now) for p in poisons],
            now=now,
        )
        for poisoned, answer in zip(poisons, answers, strict=True):
            if answer.poison is not None:
                self.ids[poisoned] = answer.poison

    def _occurrence(
        self, poisoned: Poisoned, *, at: datetime, now: datetime
    ) -> Occurrence:
        """Build an occurrence of a made-up failure from its consumer's report."""
        report = consumer_reports.failure(
            poisoned, at=at, redrive=self.tokens.get(poisoned)
        )
        return from_report(report, topic=self.topics[report.topic], now=now)

    # Counters of consumers and of brokers

    def _store_counts(self, number: int) -> None:
        """Store the made-up counters of consumers and of brokers."""
        now = max(count.minute for count in self.day.counts) + SLOT
        numbered = list(enumerate(self.day.counts, start=number * COUNTS_OF_A_DAY))
        counters = [
            consumer_reports.counter(count, sequence).to_wire()
            for sequence, count in numbered
            if count.stream.source is DeliveredSource.SDK
        ]
        capture.count(members=counters, principal=SAMPLE, now=now)
        rows = [
            self._broker_counter(count, sequence, now=now)
            for sequence, count in numbered
            if count.stream.source is DeliveredSource.BROKER
        ]
        with connection.cursor() as cursor:
            cursor.executemany(_INSERT_BROKER_COUNTER, rows)

    def _broker_counter(
        self, count: ClientCounts, sequence: int, *, now: datetime
    ) -> dict[str, Any]:
        """Return the values of a made-up counter row of a broker."""
        return {
            "day": now.date(),
            "reporter": consumer_reports.reporter(count),
            "sequence": sequence,
            "topic": self.topics[count.stream.topic].pk,
            "consumer_group": count.stream.consumer_group,
            "client": count.client,
            "minute": count.minute,
            "handled": count.handled + count.failed,
            "now": now,
        }

    # Later steps: decisions, and the results of redrives

    def _apply(self, step: PlannedStep) -> None:
        """Carry out the sample's planned redrive, drop, confirmation or recurrence."""
        match step.kind:
            case StepKind.REDRIVEN:
                self._sign(self._decide(step, Verb.REDRIVE), step)
            case StepKind.DROPPED:
                self._decide(step, Verb.DROP)
            case StepKind.CONFIRMED:
                self._confirm_redrives(step)
            case StepKind.RECURRED:
                self._recur(step)

    def _decide(self, step: PlannedStep, verb: Verb) -> Operation:
        """Preview, confirm and run an operation of the sample's history.

        Raises UnexpectedResult.
        """
        operation = self._preview(step, verb)
        confirm_and_undo.confirm(
            token=operation.token, reason=step.reason, principal=SAMPLE, now=step.at
        )
        ended = running.run(
            operation_id=operation.pk,
            publisher=DiscardingPublisher(),
            clock=lambda: step.at,
        )
        if ended is not SliceEnd.DONE or operation.skipped.exists():
            raise UnexpectedResult(
                f"operation {operation.pk} did not act on all of its items"
            )
        return operation

    def _preview(self, step: PlannedStep, verb: Verb) -> Operation:
        """Create an operation of the sample's history as a preview would.

        A preview itself cannot see these poisons, because they are not committed yet.
        """
        ids = [self.ids[poisoned] for poisoned in step.poisons]
        operation = Operation.objects.create(
            verb=verb.value,
            actor=str(SAMPLE.actor),
            source=SAMPLE.source,
            topics=list(SAMPLE.topics),
            query=str(Query((Term("day", self.day.day.isoformat()),))),
            taken=True,
            total=len(ids),
            will_act=len(ids),
            created_at=step.at - PREVIEW_AGE,
            expires_at=step.at + PREVIEW_LIVES,
        )
        Item.objects.bulk_create(
            Item(operation=operation, number=number, poison_id=pk)
            for number, pk in enumerate(sorted(ids))
        )
        return operation

    def _sign(self, operation: Operation, step: PlannedStep) -> None:
        """Sign redrive headers of the history's redriven messages; remember them."""
        redrives = Redrive.objects.filter(operation=operation.pk)
        by_poison = {each.poison_id: each for each in redrives.select_related("poison")}
        for poisoned in step.poisons:
            redrive = by_poison[self.ids[poisoned]]
            self.tokens[poisoned] = redrive_signatures.sign(
                redrive=redrive.pk,
                topic=poisoned.stream.topic,
                digest=redrive.poison.digest,
            )

    def _confirm_redrives(self, step: PlannedStep) -> None:
        """Confirm a step's redrives in the sample's history.

        Raises UnexpectedResult if one is refused.
        """
        pairs = [(self.tokens[p], p.stream.topic) for p in step.poisons]
        verdicts = redrive_confirmations_by_token.confirm(tokens=pairs, now=step.at)
        if any(verdict.status != CaptureStatus.CONFIRMED for verdict in verdicts):
            raise UnexpectedResult("a redrive could not be confirmed")

    def _recur(self, step: PlannedStep) -> None:
        """Capture redriven messages that fail again in the sample's history.

        Raises UnexpectedResult if one did not update its poison.
        """
        again = [self._occurrence(p, at=step.at, now=step.at) for p in step.poisons]
        answers = capture.write(occurrences=again, now=step.at)
        if any(answer.status != CaptureStatus.UPDATED for answer in answers):
            raise UnexpectedResult("a redriven message came back as another one")


class DiscardingPublisher(RoutingPublisher):
    """Report every message as sent, without sending it."""

    def publish(self, messages: Sequence[RoutedMessage]) -> list[PublishOutcome]:
        """Stand in for a broker in the sample's history.

        Send nothing, and report each message as sent.
        """
        return [PublishOutcome(kind=OutcomeKind.SENT)] * len(messages)


def _batch_of(poisoned: Poisoned) -> int:
    """Return in which batch of its day the sample writes a made-up failure."""
    return poisoned.failed_at.hour // HOURS_OF_A_BATCH


_INSERT_BROKER_COUNTER = """
INSERT INTO capture_counter (day, reporter, sequence, topic_id, consumer_group,
    client_name, minute, source, handled, failed, skipped, retried, duration_ms_hist,
    captured_at)
VALUES (%(day)s, %(reporter)s, %(sequence)s, %(topic)s, %(consumer_group)s, %(client)s,
    %(minute)s, 'broker', %(handled)s, 0, 0, 0, '{}', %(now)s)
ON CONFLICT DO NOTHING
"""
