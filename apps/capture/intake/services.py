"""Store failures, confirmations and counters, each counted exactly once."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from psycopg.errors import DeadlockDetected, UniqueViolation

from apps.brokers.models import Topic
from apps.brokers.row_locks import lock_topics
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.intake import (
    first_failure_inserts_without_merge,
    messages_too_large_to_capture,
    single_failures,
)
from apps.capture.intake.occurrence import Occurrence, credible_time, from_report
from apps.capture.intake.staged_occurrences_merge import merge
from apps.core.batch_requests import Batch
from apps.poison.services import redrive_confirmations_by_token
from apps.poison.services.redrive_confirmations_by_token import ConfirmationResult
from apps.team.rights import Principal
from poisonguard.contract import (
    CounterReport,
    FailureReport,
    parse_confirmation,
    parse_counter,
    parse_failure,
)

log = logging.getLogger(__name__)

_TRIES = 5

# Stores occurrences inside a transaction; returns (status, poison id) of each.
Store = Callable[..., list[tuple[str, int]]]


class CaptureStatus(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    DUPLICATE = "duplicate"
    CONFIRMED = "confirmed"
    COUNTED = "counted"
    REJECTED = "rejected"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureAnswer:
    """The result for one member of a request; `pointer` is set if it is rejected."""

    status: CaptureStatus
    poison: int | None = None
    detail: str | None = None
    pointer: str | None = None


def write(*, occurrences: Sequence[Occurrence], now: datetime) -> list[CaptureAnswer]:
    """Store all failures, or none; return the answer to each, in order.

    Rows that reported their messages as too large are deleted.
    """
    if not occurrences:
        return []
    store = first_failure_inserts_without_merge.write
    for attempt in range(1, _TRIES + 1):
        try:
            pairs = _write_one(occurrences, now=now)
            if pairs is None:
                pairs = _write_many(store, occurrences, now=now)
            return [
                CaptureAnswer(status=CaptureStatus(status), poison=poison_id)
                for status, poison_id in pairs
            ]
        except IntegrityError as error:
            # Another transaction inserted one of the messages a moment before us.
            if store is merge or not isinstance(error.__cause__, UniqueViolation):
                raise
            store = merge
        except OperationalError as error:
            # Operations lock poisons too; Postgres cancels one of two in a deadlock.
            if attempt == _TRIES or not isinstance(error.__cause__, DeadlockDetected):
                raise
            log.warning("capture met a deadlock and tries again (%d)", attempt)
    raise AssertionError("unreachable")  # pragma: no cover


def _write_one(
    occurrences: Sequence[Occurrence], *, now: datetime
) -> list[tuple[str, int]] | None:
    """Store a single failure by few statements; None if a batch must store it."""
    if len(occurrences) > 1:
        return None
    pair = single_failures.write(occurrences[0], now=now)
    return None if pair is None else [pair]


@transaction.atomic
def _write_many(
    store: Store, occurrences: Sequence[Occurrence], *, now: datetime
) -> list[tuple[str, int]]:
    """Store failures in a transaction; return (status, poison id) of each."""
    with connection.cursor() as cursor:
        lock_topics(topics={occurrence.topic_id for occurrence in occurrences})
        pairs = store(cursor, occurrences, now=now)
        messages_too_large_to_capture.delete_captured(
            cursor, {occurrence.identity for occurrence in occurrences}
        )
    return pairs


def capture(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[CaptureAnswer]:
    """Store the failures that guards report; return the answer to each, in order.

    Invalid reports, those of hidden topics and those with too large a body are rejected
    one by one.
    """
    batch = Batch(members, parse_failure, reject)
    batch.answer(lambda report: refuse_hidden(report.topic, principal))
    topics = brokers.topics_named(names={report.topic for report in batch.unanswered})
    too_large = [report for report in batch.unanswered if _why_too_large(report)]
    messages_too_large_to_capture.record(too_large, topics, now=now)
    batch.answer(_refuse_too_large)
    reports = batch.unanswered
    replaying = {topics[report.topic] for report in reports if report.replays}
    brokers.note_replays(topics=replaying)
    occurrences = [
        from_report(report, topic=topics[report.topic], now=now) for report in reports
    ]
    return batch.in_order(write(occurrences=occurrences, now=now))


def confirm(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[CaptureAnswer]:
    """Store that consumers handled these redriven messages; idempotent.

    Returns the answer to each confirmation, in order; a bad one is rejected alone.
    """
    batch = Batch(members, parse_confirmation, reject)
    batch.answer(lambda confirmation: refuse_hidden(confirmation.topic, principal))
    results = redrive_confirmations_by_token.confirm(
        tokens=[(each.redrive, each.topic) for each in batch.unanswered], now=now
    )
    return batch.in_order(map(_answer_of_confirmation, results))


def count(
    *, members: Sequence[object], principal: Principal, now: datetime
) -> list[CaptureAnswer]:
    """Store the delivery counters of consumers, each (reporter, sequence) once.

    Returns the answer to each counter, in order: counted, duplicate or rejected.
    """
    batch = Batch(members, parse_counter, reject)
    batch.answer(lambda counter: refuse_hidden(counter.topic, principal))
    topics = brokers.topics_named(names={counter.topic for counter in batch.unanswered})
    inserted = _insert_counters(batch.unanswered, topics, now=now)
    answers = []
    for counter in batch.unanswered:
        is_new = (counter.reporter, counter.sequence) in inserted
        # A second copy within one request is a duplicate of the first.
        inserted.discard((counter.reporter, counter.sequence))
        status = CaptureStatus.COUNTED if is_new else CaptureStatus.DUPLICATE
        answers.append(CaptureAnswer(status=status))
    return batch.in_order(answers)


def reject(pointer: str, detail: str) -> CaptureAnswer:
    """Return the answer to a report that cannot be stored, and why."""
    return CaptureAnswer(status=CaptureStatus.REJECTED, detail=detail, pointer=pointer)


def refuse_hidden(topic: str, principal: Principal) -> CaptureAnswer | None:
    """Return a rejection if the principal may not write to the topic, else None."""
    if principal.sees(topic):
        return None
    remedy = f"this key may not write to the topic {topic}; give it the topic first"
    return reject("/topic", remedy)


def _answer_of_confirmation(result: ConfirmationResult) -> CaptureAnswer:
    """Turn the result of a confirmation into the answer to its report."""
    status = CaptureStatus(result.status)
    pointer = "/redrive" if status is CaptureStatus.REJECTED else None
    return CaptureAnswer(
        status=status, poison=result.poison, detail=result.detail, pointer=pointer
    )


def _why_too_large(report: FailureReport) -> str:
    """Return why a reported message's body cannot be stored, or "" if it can."""
    if report.oversize_body is not None:
        size = report.oversize_body.size
        return f"the body of {size} bytes was left out"
    limit = settings.POISONWEB_BODY_LIMIT
    if len(report.body) > limit:
        return f"the body has {len(report.body)} bytes, the limit is {limit}"
    return ""


def _refuse_too_large(report: FailureReport) -> CaptureAnswer | None:
    """Return a rejection if a message's body is too large, else None."""
    reason = _why_too_large(report)
    if not reason:
        return None
    return reject(
        "/body",
        f"oversize: {reason}; it is noted on the page of its topic: "
        "do not settle the message, or raise POISONWEB_BODY_LIMIT",
    )


_INSERT_COUNTERS = """
INSERT INTO capture_counter (day, reporter, sequence, topic_id, consumer_group,
    client_name, minute, minute_claimed, source, handled, failed, skipped, retried,
    duration_ms_hist, captured_at)
SELECT DISTINCT ON (new.reporter, new.sequence)
       %(day)s, new.reporter, new.sequence, new.topic_id, new.consumer_group,
       new.client_name, new.minute, new.minute_claimed, 'sdk', new.handled,
       new.failed, new.skipped, new.retried, new.duration_ms_hist, %(now)s
FROM jsonb_to_recordset(%(rows)s::jsonb) AS new(
    reporter uuid, sequence int8, topic_id int8, consumer_group text,
    client_name text, minute timestamptz, minute_claimed timestamptz, handled int8,
    failed int8, skipped int8, retried int8, duration_ms_hist jsonb)
WHERE NOT EXISTS (SELECT FROM capture_counter existing
                  WHERE existing.reporter = new.reporter
                    AND existing.sequence = new.sequence)
RETURNING reporter, sequence
"""


@transaction.atomic
def _insert_counters(
    counters: Sequence[CounterReport], topics: dict[str, Topic], *, now: datetime
) -> set[tuple[uuid.UUID, int]]:
    """Insert delivery counters; return (reporter, sequence) of new ones."""
    if not counters:
        return set()
    rows = json.dumps([_counter_row(c, topics[c.topic].pk, now=now) for c in counters])
    # This table has no foreign key: the lock keeps the topic from being removed.
    lock_topics(topics={topics[counter.topic].pk for counter in counters})
    with connection.cursor() as cursor:
        # No unique index spans the partitions: lock, one writer for each reporter.
        for reporter in sorted({str(counter.reporter) for counter in counters}):
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [reporter]
            )
        cursor.execute(_INSERT_COUNTERS, {"rows": rows, "now": now, "day": now.date()})
        return set(cursor.fetchall())


def _counter_row(
    counter: CounterReport, topic_id: int, *, now: datetime
) -> dict[str, Any]:
    """Build the row of a delivery counter, as the statement takes it."""
    minute, claimed = credible_time(counter.minute, now=now)
    return {
        "reporter": str(counter.reporter),
        "sequence": counter.sequence,
        "topic_id": topic_id,
        "consumer_group": counter.consumer_group,
        "client_name": counter.client_name,
        "minute": minute.replace(second=0, microsecond=0).isoformat(),
        "minute_claimed": claimed and claimed.isoformat(),
        "handled": counter.handled,
        "failed": counter.failed,
        "skipped": counter.skipped,
        "retried": counter.retried,
        "duration_ms_hist": dict(counter.duration_ms_hist),
    }
