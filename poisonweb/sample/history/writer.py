"""Makes a planned day happen in Postgres, by the services that make real ones.

A day and all that became of it is one transaction: it is there whole or not at all, and
nobody meets one of its messages before its fate is fulfilled. Nothing is ever sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import Any

from django.db import connection, transaction

from apps.brokers.ports import Outcome, OutcomeKind
from apps.brokers.services import topics as brokers
from apps.brokers.services.topics import Addressed, RoutingPublisher
from apps.capture.intake import services as capture
from apps.capture.intake.occurrence import Occurrence, from_report
from apps.capture.intake.services import Status
from apps.core.actor import Actor
from apps.poison import services as poison
from apps.poison import tokens
from apps.poison.models import Problem, Redrive
from apps.poison.query import Query, Term
from apps.team.rights import Principal, Scope
from apps.triage.models import Item, Operation
from apps.triage.services import decision, running
from apps.triage.services.running import SliceEnd
from apps.triage.services.selection import PREVIEW_LIVES
from apps.triage.states import Verb
from poisonweb.sample.history import told
from poisonweb.sample.history.plan import SLOT, Count, Day, Poisoned, Step, What
from poisonweb.sample.history.streams import STREAMS, Source

SAMPLE = Principal(
    actor=Actor.system("sample"), scopes=frozenset(Scope), source="system"
)
HOURS_OF_A_BATCH = 4
LOOKED_AT = timedelta(minutes=1)
COUNTS_OF_A_DAY = 10_000


class Astray(Exception):
    """Something else than the plan became of a message of the history."""


def made() -> set[date]:
    """Find the days that are there, by the decisions on them."""
    decided = Operation.objects.filter(actor=str(SAMPLE.actor))
    queries = set(decided.exclude(query=None).values_list("query", flat=True))
    found = {Query.parse(query or "").value_of("day") for query in queries}
    return {date.fromisoformat(day) for day in found if day}


@transaction.atomic
def write(day: Day, *, number: int) -> None:
    """Write the day down; `number` tells its counters from those of other days.

    A day without a decision is written again by each start, and that changes nothing.
    """
    _Writer(day).write(number)


class _Writer:
    def __init__(self, day: Day) -> None:
        self.day = day
        self.topics = brokers.topics_named(names={each.topic for each in STREAMS})
        self.ids: dict[Poisoned, int] = {}
        self.tokens: dict[Poisoned, str] = {}

    def write(self, number: int) -> None:
        self._lock_problems()
        for _, poisons in groupby(self.day.poisons, key=_batch_of):
            self._capture(tuple(poisons))
        self._count(number)
        for step in self.day.steps:
            self._take(step)

    def _lock_problems(self) -> None:
        # Lanes lock them too, some at a time: in pieces we would wait in a ring.
        ours = Problem.objects.filter(topic__in=self.topics.values()).order_by("pk")
        list(ours.select_for_update(no_key=True).values_list("pk"))

    def _capture(self, poisons: Sequence[Poisoned]) -> None:
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
        report = told.failure(poisoned, at=at, redrive=self.tokens.get(poisoned))
        return from_report(report, topic=self.topics[report.topic], now=now)

    # Counters: what consumers tell, and what only a broker can.

    def _count(self, number: int) -> None:
        now = max(count.minute for count in self.day.counts) + SLOT
        numbered = list(enumerate(self.day.counts, start=number * COUNTS_OF_A_DAY))
        counters = [
            told.counter(count, sequence).to_wire()
            for sequence, count in numbered
            if count.stream.source is Source.SDK
        ]
        capture.count(members=counters, principal=SAMPLE, now=now)
        rows = [
            self._row(count, sequence, now=now)
            for sequence, count in numbered
            if count.stream.source is Source.BROKER
        ]
        with connection.cursor() as cursor:
            cursor.executemany(_INSERT_BROKER_COUNTER, rows)

    def _row(self, count: Count, sequence: int, *, now: datetime) -> dict[str, Any]:
        return {
            "day": now.date(),
            "reporter": told.reporter(count),
            "sequence": sequence,
            "topic": self.topics[count.stream.topic].pk,
            "consumer_group": count.stream.consumer_group,
            "client": count.client,
            "minute": count.minute,
            "handled": count.handled + count.failed,
            "now": now,
        }

    # What became of the messages: decisions, and what consumers said of redrives.

    def _take(self, step: Step) -> None:
        match step.what:
            case What.REDRIVEN:
                self._sign(self._decide(step, Verb.REDRIVE), step)
            case What.DROPPED:
                self._decide(step, Verb.DROP)
            case What.CONFIRMED:
                self._confirm(step)
            case What.RECURRED:
                self._recur(step)

    def _decide(self, step: Step, verb: Verb) -> Operation:
        operation = self._preview(step, verb)
        decision.confirm(
            token=operation.token, reason=step.reason, principal=SAMPLE, now=step.at
        )
        ended = running.run(
            operation_id=operation.pk, publisher=Nowhere(), clock=lambda: step.at
        )
        if ended is not SliceEnd.DONE or operation.items.exclude(reason="").exists():
            raise Astray(f"operation {operation.pk} did not act on all of its items")
        return operation

    def _preview(self, step: Step, verb: Verb) -> Operation:
        """Make the operation as a preview does, which could not see these poisons.

        They are of this transaction, and no snapshot shows what is not committed.
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
            created_at=step.at - LOOKED_AT,
            expires_at=step.at + PREVIEW_LIVES,
        )
        Item.objects.bulk_create(
            Item(operation=operation, poison_id=pk) for pk in sorted(ids)
        )
        return operation

    def _sign(self, operation: Operation, step: Step) -> None:
        """Note the headers that the redriven messages bear."""
        sent = Redrive.objects.filter(item__operation=operation)
        by_poison = {each.poison_id: each for each in sent.select_related("poison")}
        for poisoned in step.poisons:
            redrive = by_poison[self.ids[poisoned]]
            self.tokens[poisoned] = tokens.sign(
                redrive=redrive.pk,
                topic=poisoned.stream.topic,
                digest=redrive.poison.digest,
            )

    def _confirm(self, step: Step) -> None:
        sent = [(self.tokens[p], p.stream.topic) for p in step.poisons]
        verdicts = poison.confirm(tokens=sent, now=step.at)
        if any(verdict.status != Status.CONFIRMED for verdict in verdicts):
            raise Astray("a redrive could not be confirmed")

    def _recur(self, step: Step) -> None:
        again = [self._occurrence(p, at=step.at, now=step.at) for p in step.poisons]
        answers = capture.write(occurrences=again, now=step.at)
        if any(answer.status != Status.UPDATED for answer in answers):
            raise Astray("a redriven message came back as another one")


class Nowhere(RoutingPublisher):
    """Say of every message that it was sent, and send none."""

    def publish(self, messages: Sequence[Addressed]) -> list[Outcome]:
        return [Outcome(kind=OutcomeKind.SENT)] * len(messages)


def _batch_of(poisoned: Poisoned) -> int:
    return poisoned.failed_at.hour // HOURS_OF_A_BATCH


_INSERT_BROKER_COUNTER = """
INSERT INTO capture_counter (day, reporter, sequence, topic_id, consumer_group,
    client_name, minute, source, handled, failed, skipped, retried, duration_ms_hist,
    captured_at)
VALUES (%(day)s, %(reporter)s, %(sequence)s, %(topic)s, %(consumer_group)s, %(client)s,
    %(minute)s, 'broker', %(handled)s, 0, 0, 0, '{}', %(now)s)
ON CONFLICT DO NOTHING
"""
