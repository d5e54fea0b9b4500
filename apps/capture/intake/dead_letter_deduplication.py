"""Recognize dead letters without a name by their digest, so none is captured twice.

1. Capture commits such a letter together with a `Delivery` that holds its digest.
2. The broker is told to remove the letter.
3. The `Delivery` is deleted.

A lane that dies between 1 and 2 gets the letter again, marked as redelivered: it
finds the row, and does not capture it a second time. A lane that dies between 2 and 3
leaves a row whose letter is gone. Only a letter that is equal in every byte, and that
the broker had delivered to the dead lane, could be mistaken for it. Such rows are
deleted when an hour has passed and the queue is empty: no broker keeps a letter of a
dead connection for so long.

A lane that dies at its commit leaves a server process behind that still commits. Its
successor waits for that before it asks for a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db import transaction

from apps.brokers.adapter_contract import DeadLetter
from apps.brokers.models import Topic
from apps.capture.intake.occurrence import digest_of_delivery
from apps.capture.models import Delivery
from apps.core.postgres_connections import borrow

IN_DOUBT = timedelta(hours=1)


@borrow()
def await_commits(*, topic: Topic) -> None:
    """Wait until other transactions that write a topic's dead letters have ended.

    Each row refers to its topic, which locks the topic against this FOR UPDATE.
    """
    with transaction.atomic():
        Topic.objects.select_for_update().filter(pk=topic.pk).first()


@borrow()
def reports_of_captured(
    letters: Sequence[DeadLetter], *, topic: Topic, in_hand: Collection[uuid.UUID]
) -> dict[str, uuid.UUID]:
    """Find redelivered dead letters without a name that were captured before.

    Returns the report id of each, by the letter's handle. A stored row with the digest
    of a letter matches one letter; rows whose letters are `in_hand` match none.
    """
    doubtful = {
        letter.handle: digest_of_delivery(letter)
        for letter in letters
        if letter.redelivered and not letter.bookmark
    }
    if not doubtful:
        return {}
    rows = Delivery.objects.with_digests(topic=topic.pk, digests=doubtful.values())
    reports: dict[bytes, list[uuid.UUID]] = {}
    for row in rows.exclude(pk__in=in_hand).oldest_first():
        reports.setdefault(bytes(row.digest), []).append(row.report_id)
    return {
        handle: reports[digest].pop(0)
        for handle, digest in doubtful.items()
        if reports.get(digest)
    }


@borrow()
def delete_acknowledged(reports: Collection[uuid.UUID]) -> None:
    """Delete the rows of dead letters that the broker was told to remove."""
    if reports:
        Delivery.objects.filter(pk__in=reports).delete()


@borrow()
def prune(*, topic: Topic, in_hand: Collection[uuid.UUID], now: datetime) -> None:
    """Delete a topic's rows of dead letters captured more than an hour ago.

    Rows whose letters are `in_hand` stay. Call it when the dead-letter queue is empty:
    then these letters cannot come back.
    """
    old = Delivery.objects.filter(topic=topic).captured_before(now - IN_DOUBT)
    old.exclude(pk__in=in_hand).delete()
