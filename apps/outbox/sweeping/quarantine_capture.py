"""Capture the quarantined rows of an outbox as messages to triage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import NAMESPACE_OID, UUID, uuid5

from apps.brokers.models import Topic
from apps.capture.intake import services as capture
from apps.capture.intake.occurrence import stored_message_id
from apps.capture.intake.services import CaptureAnswer, CaptureStatus
from apps.core import hashed_ids
from apps.core.actor import Actor
from apps.outbox.models import Outbox
from apps.outbox.services import quarantined_rows_and_messages
from apps.outbox.services.quarantined_rows_and_messages import CapturedRow
from apps.poison.models import Poison
from apps.team.rights import Principal
from poisonguard.contract import FailureReport
from poisonguard.outbox.sweeping.quarantined_rows_as_failure_reports import failure_of
from poisonguard.outbox.sweeping.row_quarantine_and_report import (
    QuarantinedRow,
    ReportAnswer,
)

SWEEPER = Principal(actor=Actor.system("sweeper"), scopes=frozenset(), source="system")


def capture_quarantined(
    *, outbox: Outbox, rows: Sequence[QuarantinedRow], now: datetime
) -> list[ReportAnswer]:
    """Capture an outbox's quarantined rows as failures, and answer in their order.

    They are failures of their topics, where these are registered, or else of the
    outbox's own topic. The same row with the same reason counts once, until it is
    quarantined again.
    """
    topics = _registered_topics(outbox, {row.topic for row in rows})
    reports = [
        replace(
            failure_of(row, outbox=outbox.topic.name),
            topic=topics.get(row.topic, outbox.topic.name),
            report_id=_report_id(row, outbox),
        )
        for row in rows
    ]
    members = [each.to_wire() for each in _with_new_attempts(reports)]
    answers = capture.capture(members=members, principal=SWEEPER, now=now)
    captured = [
        CapturedRow(row=row, poison=answer.poison)
        for row, answer in zip(rows, answers, strict=True)
        if answer.poison is not None
    ]
    quarantined_rows_and_messages.note(outbox=outbox, rows=captured, now=now)
    return [_answer(each, to) for each, to in zip(answers, reports, strict=True)]


def _report_id(row: QuarantinedRow, outbox: Outbox) -> UUID:
    """Build the report id with which a quarantine of an outbox row is captured.

    A later quarantine of the row has another. A row that a sweeper cannot mark has no
    time.
    """
    name = (outbox.topic.name, str(row.row_id), row.reason, str(row.quarantined_at))
    return uuid5(NAMESPACE_OID, ":".join(name))


def _with_new_attempts(reports: Sequence[FailureReport]) -> list[FailureReport]:
    """Take from each report the attempts that its message has from earlier ones.

    A row counts all of its attempts, and a message adds up those of its reports.
    """
    identities = [
        hashed_ids.identity(
            topic=report.topic,
            consumer_group=report.consumer_group,
            bookmark=hashed_ids.raw(report.bookmark),
        )
        for report in reports
    ]
    messages = Poison.objects.filter(identity__in=identities).order_by("reuse")
    reported = {
        bytes(identity): (message_id, attempts)
        for identity, message_id, attempts in messages.values_list(
            "identity", "message_id", "attempts"
        )
    }
    changed = list[FailureReport]()
    for identity, report in zip(identities, reports, strict=True):
        message_id, attempts = reported.get(identity, (None, 0))
        if message_id != stored_message_id(report.message_id):
            attempts = 0  # of a row of another database, with the same number
        changed.append(replace(report, attempts=max(report.attempts - attempts, 0)))
    return changed


def _registered_topics(outbox: Outbox, natives: set[str]) -> dict[str, str]:
    """Return the registered topics of the outbox's broker, by the broker's names."""
    topics = Topic.objects.filter(broker=outbox.broker_id, native_name__in=natives)
    return dict(topics.values_list("native_name", "name"))


def _answer(answer: CaptureAnswer, report: FailureReport) -> ReportAnswer:
    """Translate the answer of a quarantined row's capture for the sweeper.

    The row is accepted if it is stored, or if its body is too large to be.
    """
    is_noted = report.oversize_body is not None or answer.pointer == "/body"
    is_stored = answer.status is not CaptureStatus.REJECTED
    return ReportAnswer(is_accepted=is_stored or is_noted, detail=answer.detail or "")
