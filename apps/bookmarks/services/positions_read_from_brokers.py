"""Store the positions of consumers that their brokers keep."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from apps.bookmarks.models import BookmarkPosition, Mark
from apps.brokers.adapter_contract import ConsumerPosition
from apps.brokers.models import Topic


@transaction.atomic
def observe(
    *, topic: Topic, consumers: Sequence[ConsumerPosition], now: datetime
) -> None:
    """Replace the positions on a topic by those that its broker reports now."""
    groups = {consumer.consumer_group for consumer in consumers}
    existing = BookmarkPosition.objects.filter(topic=topic, source="broker")
    existing.exclude(consumer_group__in=groups).delete()
    for consumer in consumers:
        _store_position(topic, consumer, now=now)


def _store_position(topic: Topic, consumer: ConsumerPosition, *, now: datetime) -> None:
    """Store the position and one mark that a broker reports, and when it last moved."""
    position, created = BookmarkPosition.objects.update_or_create(
        topic=topic,
        source="broker",
        consumer_group=consumer.consumer_group,
        client_name="",
        sub_id="",
        defaults={"clients": consumer.clients, "observed_at": now},
        create_defaults={
            "clients": consumer.clients,
            "observed_at": now,
            "moved_at": now,
        },
    )
    before = position.marks.filter(publisher="").first()
    if not created and before is not None and before.processed != consumer.seq:
        BookmarkPosition.objects.filter(pk=position.pk).update(moved_at=now)
    Mark.objects.update_or_create(
        position=position,
        publisher="",
        defaults={
            "processed": consumer.seq,
            "bookmark": consumer.bookmark,
            "head": consumer.head_seq,
            "head_bookmark": consumer.head_bookmark,
            "lag": consumer.lag,
            "pending": consumer.pending,
            "oldest_pending_seconds": consumer.oldest_pending_seconds,
        },
    )
