"""HOW FAR EACH CONSUMER HAS READ. Today: what each broker says, read only."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.brokers.models import Topic


class BookmarkPosition(models.Model):
    """One reader of one topic; its marks stand below it, one for each publisher."""

    topic = models.ForeignKey(Topic, on_delete=models.CASCADE, related_name="positions")
    source = models.CharField(max_length=10, default="broker")
    consumer_group = models.TextField(default="")
    client_name = models.TextField(default="")
    sub_id = models.TextField(default="")
    clients = models.PositiveIntegerField(default=0)
    observed_at = models.DateTimeField()
    moved_at = models.DateTimeField()

    class Meta:
        db_table = "bookmarks_position"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "source", "consumer_group", "client_name", "sub_id"],
                name="bookmarks_position_once",
            ),
            models.CheckConstraint(
                name="bookmarks_position_source_is_known",
                condition=Q(source="broker"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} on {self.topic_id}"


class Mark(models.Model):
    """How far a reader has come with one publisher's messages.

    `publisher` is text: AMPS numbers exceed bigint. `processed` is comparable within a
    topic (Redis Streams: milliseconds << 20 | n); the bookmark is the broker's own.
    """

    position = models.ForeignKey(
        BookmarkPosition, on_delete=models.CASCADE, related_name="marks"
    )
    publisher = models.TextField(default="")
    processed = models.BigIntegerField()
    bookmark = models.TextField()
    head = models.BigIntegerField()
    head_bookmark = models.TextField()
    lag = models.BigIntegerField(null=True)
    pending = models.BigIntegerField()
    oldest_pending_seconds = models.FloatField(null=True)

    class Meta:
        db_table = "bookmarks_mark"
        constraints = [
            models.UniqueConstraint(
                fields=["position", "publisher"], name="bookmarks_mark_once"
            ),
            models.CheckConstraint(
                name="bookmarks_mark_is_not_negative",
                condition=Q(processed__gte=0, head__gte=0, pending__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position_id} at {self.bookmark}"
