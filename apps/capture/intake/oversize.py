"""Messages whose body is larger than the limit: they stay with their broker.

A consumer releases such a message and reports it without its body. The row says which
message it is and where it lies, so that a person can look for it. The row is deleted
when the whole message is captured after all, or no report has come for 30 days.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from apps.brokers.models import Topic
from apps.brokers.row_locks import hold
from apps.capture.intake.occurrence import stored_message_id
from apps.capture.models import OversizeMessage
from apps.core import ids
from apps.core.text import storable
from poisonguard.contract import FailureReport

LIVES = timedelta(days=30)
# Of one topic; more of them say nothing that these do not say.
MOST = 1_000
DETAIL_LIMIT = 500


@transaction.atomic
def note(
    reports: Collection[FailureReport], topics: Mapping[str, Topic], *, now: datetime
) -> None:
    """Record these messages, or count one more report of each."""
    if not reports:
        return
    # No topic goes in between.
    hold(topics={topics[report.topic].pk for report in reports})
    for report in sorted(reports, key=_identity):
        topic = topics[report.topic]
        identity = _identity(report)
        again = OversizeMessage.objects.filter(identity=identity).update(
            seen_at=now, times=F("times") + 1, client_name=report.client_name
        )
        if not again and OversizeMessage.objects.filter(topic=topic).count() < MOST:
            OversizeMessage.objects.get_or_create(
                identity=identity, defaults=_facts(report, topic, now=now)
            )


def taken(identities: Collection[bytes]) -> None:
    """Delete the rows of messages that have now been captured whole."""
    OversizeMessage.objects.filter(identity__in=identities).delete()


def forget(*, now: datetime) -> None:
    """Delete the rows that no consumer has reported for 30 days."""
    OversizeMessage.objects.filter(seen_at__lt=now - LIVES).delete()


def _identity(report: FailureReport) -> bytes:
    return ids.identity(
        topic=report.topic,
        consumer_group=report.consumer_group,
        bookmark=ids.raw(report.bookmark),
    )


def _facts(report: FailureReport, topic: Topic, *, now: datetime) -> dict[str, object]:
    body, raised = report.oversize_body, report.exception
    error = f"{raised.type}: {raised.message}" if raised else ""
    return {
        "topic": topic,
        "consumer_group": report.consumer_group,
        "client_name": report.client_name,
        "host": report.host,
        "bookmark": ids.raw(report.bookmark),
        "message_id": stored_message_id(report.message_id),
        "size": body.size if body else len(report.body),
        "digest": body.sha256 if body else hashlib.sha256(report.body).digest(),
        "cause": report.cause.value,
        "error": storable(error, limit=DETAIL_LIMIT),
        "first_seen_at": now,
        "seen_at": now,
    }
