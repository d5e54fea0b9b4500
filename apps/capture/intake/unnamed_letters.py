"""Dead letters without a name: known again by their digest while that is in doubt.

1. Capture commits such a letter together with a `Delivery` that holds its digest.
2. The broker is told to remove the letter.
3. The `Delivery` is deleted.

A lane that dies between 1 and 2 gets the letter again, marked as handed out before: it
finds the row, and does not write it a second time. One that dies between 2 and 3 leaves
a row whose letter is gone; only a letter that is equal in every byte, and had been
handed to the lane that died, could be taken for it. Such rows are forgotten when an
hour has passed and the queue is found empty: no broker keeps a letter of a dead
connection for so long.

A lane that dies at its commit leaves a server process behind that still carries it out:
before its successor asks for a row, it waits for that.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db import transaction

from apps.brokers.models import Topic
from apps.brokers.ports import DeadLetter
from apps.capture.intake.occurrence import digest_of_delivery
from apps.capture.models import Delivery
from apps.core.sessions import borrow

IN_DOUBT = timedelta(hours=1)


@borrow()
def await_commits(*, topic: Topic) -> None:
    """Wait until what others have begun to write of a topic is there, or will not be.

    Every row of a topic refers to it, and that keeps others from locking it outright.
    """
    with transaction.atomic():
        Topic.objects.select_for_update().filter(pk=topic.pk).first()


@borrow()
def written(
    letters: Sequence[DeadLetter], *, topic: Topic, in_hand: Collection[uuid.UUID]
) -> dict[str, uuid.UUID]:
    """Find letters that are in the record already: the report of each, by its handle.

    One row answers one letter; none of those whose letters are `in_hand` answers any.
    """
    doubtful = {
        letter.handle: digest_of_delivery(letter)
        for letter in letters
        if letter.redelivered and not letter.bookmark
    }
    if not doubtful:
        return {}
    rows = Delivery.objects.like(topic=topic.pk, digests=doubtful.values())
    known: dict[bytes, list[uuid.UUID]] = {}
    for row in rows.exclude(pk__in=in_hand).oldest_first():
        known.setdefault(bytes(row.digest), []).append(row.report_id)
    return {
        handle: known[digest].pop(0)
        for handle, digest in doubtful.items()
        if known.get(digest)
    }


@borrow()
def acknowledged(reports: Collection[uuid.UUID]) -> None:
    """Forget letters that their broker was told to remove."""
    if reports:
        Delivery.objects.filter(pk__in=reports).delete()


@borrow()
def forget(*, topic: Topic, in_hand: Collection[uuid.UUID], now: datetime) -> None:
    """Forget those whose letters cannot come back any more, the queue being empty."""
    old = Delivery.objects.filter(topic=topic).before(now - IN_DOUBT)
    old.exclude(pk__in=in_hand).delete()
