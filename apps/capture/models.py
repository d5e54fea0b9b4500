"""IN: what consumers counted, and what the lanes had to leave at the broker."""

from __future__ import annotations

from django.db import models

from apps.brokers.models import Topic
from apps.core.fields import CurrentTransaction, TransactionIdField


class Counter(models.Model):
    """What one consumer did in one minute. `failed` is terminal; skipped is apart.

    Where the broker told it (`source`), `handled` is what it delivered in that minute.
    `duration_ms_hist` maps a log2 bucket to a number: {"3": 7} is seven messages that
    took 8 to 15 ms. Partitioned by the day of capture.
    """

    pk = models.CompositePrimaryKey("day", "id")
    day = models.DateField()
    id = models.BigIntegerField()
    reporter = models.UUIDField()
    sequence = models.BigIntegerField()
    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="+", db_constraint=False
    )
    consumer_group = models.TextField()
    client_name = models.TextField()
    minute = models.DateTimeField()
    # As the consumer's clock had it, where that was too far off to be believed.
    minute_claimed = models.DateTimeField(null=True)
    source = models.CharField(max_length=10, default="sdk", db_default="sdk")
    handled = models.BigIntegerField()
    failed = models.BigIntegerField()
    skipped = models.BigIntegerField()
    retried = models.BigIntegerField()
    duration_ms_hist = models.JSONField(default=dict)
    captured_at = models.DateTimeField()
    captured_xid = TransactionIdField(db_default=CurrentTransaction())

    class Meta:
        db_table = "capture_counter"

    def __str__(self) -> str:
        return f"{self.topic_id} {self.minute}"


class HeldDeadLetter(models.Model):
    """A dead letter that we cannot take: it stays, unacknowledged, in its queue."""

    topic = models.ForeignKey(Topic, on_delete=models.CASCADE, related_name="held")
    bookmark = models.TextField()
    reason = models.TextField()
    size = models.BigIntegerField()
    seen_at = models.DateTimeField()

    class Meta:
        db_table = "capture_held_dead_letter"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "bookmark"], name="capture_held_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.bookmark}"
