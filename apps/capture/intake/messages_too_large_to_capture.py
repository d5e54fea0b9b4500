"""Messages whose body is larger than the limit: they stay with their broker.

A consumer releases such a message and reports it without its body. The row says which
message it is and where it is, so that a person can look for it. The row is deleted
when the whole message is captured after all, or after 30 days without a report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import F

from apps.brokers.models import Topic
from apps.brokers.row_locks import lock_topics
from apps.capture.intake.occurrence import stored_message_id
from apps.capture.models import OversizeMessage
from apps.core import hashed_ids
from apps.core.arrays import hex_array
from apps.core.text_cleaning import storable
from poisonguard.contract import FailureReport

LIVES = timedelta(days=30)
# Rows of one topic; more of them would tell a person nothing new.
MOST = 1_000
DETAIL_LIMIT = 500


def record(
    reports: Collection[FailureReport], topics: Mapping[str, Topic], *, now: datetime
) -> None:
    """Insert a row for each oversize message, or count one more report of it."""
    if reports:
        _record(reports, topics, now=now)


@transaction.atomic
def _record(
    reports: Collection[FailureReport], topics: Mapping[str, Topic], *, now: datetime
) -> None:
    """Insert or count oversize messages in one transaction."""
    # So that no topic is removed meanwhile.
    lock_topics(topics={topics[report.topic].pk for report in reports})
    for report in sorted(reports, key=_identity):
        topic = topics[report.topic]
        identity = _identity(report)
        is_known = OversizeMessage.objects.filter(identity=identity).update(
            seen_at=now, times=F("times") + 1, client_name=report.client_name
        )
        if not is_known and OversizeMessage.objects.filter(topic=topic).count() < MOST:
            OversizeMessage.objects.get_or_create(
                identity=identity, defaults=_row_of_report(report, topic, now=now)
            )


# In one order, so that two of them never wait for one another.
_DELETE = """
DELETE FROM capture_oversize_message WHERE identity IN (
    SELECT identity FROM capture_oversize_message
    WHERE identity IN (SELECT decode(value, 'hex') FROM unnest(%s::text[]) AS value)
    ORDER BY identity FOR UPDATE)
"""


def delete_captured(cursor: CursorWrapper, identities: Collection[bytes]) -> None:
    """Delete the rows of oversize messages that are now captured whole.

    Call it after whatever locks messages.
    """
    cursor.execute(_DELETE, [hex_array(identities)])


def prune(*, now: datetime) -> None:
    """Delete rows of oversize messages that no consumer reported for 30 days."""
    OversizeMessage.objects.filter(seen_at__lt=now - LIVES).delete()


def _identity(report: FailureReport) -> bytes:
    """Compute the identity that an oversize message will have once captured."""
    return hashed_ids.identity(
        topic=report.topic,
        consumer_group=report.consumer_group,
        bookmark=hashed_ids.raw(report.bookmark),
    )


def _row_of_report(
    report: FailureReport, topic: Topic, *, now: datetime
) -> dict[str, object]:
    """Return the values of the row for an oversize message that a guard reported."""
    body, raised = report.oversize_body, report.exception
    error = f"{raised.type}: {raised.message}" if raised else ""
    return {
        "topic": topic,
        "consumer_group": report.consumer_group,
        "client_name": report.client_name,
        "host": report.host,
        "bookmark": hashed_ids.raw(report.bookmark),
        "message_id": stored_message_id(report.message_id),
        "size": body.size if body else len(report.body),
        "digest": body.sha256 if body else hashlib.sha256(report.body).digest(),
        "cause": report.cause.value,
        "error": storable(error, limit=DETAIL_LIMIT),
        "first_seen_at": now,
        "seen_at": now,
    }
