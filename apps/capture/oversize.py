"""Messages whose body is too large to be taken: their consumer's broker keeps them.

A consumer gives such a message back, and tells of it without its body. What is noted
here says which message it is and where it lies, so that a person knows of it. It goes
when the message comes whole after all, or was not told of for long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from apps.brokers.holding import hold
from apps.brokers.models import Topic
from apps.capture.models import OversizeMessage
from apps.capture.occurrence import stored_message_id
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
    """Write down that these are left with the broker, or were told of again."""
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
    """Strike off what came whole."""
    OversizeMessage.objects.filter(identity__in=identities).delete()


def forget(*, now: datetime) -> None:
    """Strike off what its consumers have not told of for long."""
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
