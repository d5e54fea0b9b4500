"""WHICH TOPICS EXIST, and the broker that carries each."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q

from apps.brokers.querysets import TopicQuerySet

# A lane tells how it is every few seconds; this long without a word is too long.
LANE_LIVES = timedelta(seconds=20)


class Broker(models.Model):
    """One message broker; its URL may be `env:NAME`, so that no password is stored."""

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=40)
    url = models.TextField()
    options = models.JSONField(default=dict)
    is_sample = models.BooleanField(
        default=False, db_default=False, help_text="what it carries is made up"
    )

    class Meta:
        db_table = "brokers_broker"

    def __str__(self) -> str:
        return self.name


class Topic(models.Model):
    """Where messages are read. Without a broker it is only known by report.

    `lane_*` is what the lane that drains its dead-letter queue last said of itself.
    """

    name = models.TextField(unique=True)
    broker = models.ForeignKey(
        Broker, null=True, on_delete=models.PROTECT, related_name="topics"
    )
    native_name = models.TextField()
    dead_letter_queue = models.TextField(default="")
    max_dequeue_count = models.PositiveIntegerField(default=5)
    visibility_timeout = models.FloatField(default=60.0, help_text="seconds")
    lane_state = models.CharField(max_length=10, default="off")
    lane_detail = models.TextField(default="")
    lane_seen_at = models.DateTimeField(null=True)

    objects = TopicQuerySet.as_manager()

    class Meta:
        db_table = "brokers_topic"
        constraints = [
            models.UniqueConstraint(
                fields=["broker", "native_name"], name="brokers_topic_native_name_once"
            ),
            models.CheckConstraint(
                name="brokers_topic_max_dequeue_count_is_positive",
                condition=Q(max_dequeue_count__gte=1),
            ),
            models.CheckConstraint(
                name="brokers_topic_visibility_timeout_is_positive",
                condition=Q(visibility_timeout__gt=0),
            ),
            models.CheckConstraint(
                name="brokers_topic_is_drained_only_with_a_broker",
                condition=Q(broker__isnull=False) | Q(dead_letter_queue=""),
            ),
            models.CheckConstraint(
                name="brokers_topic_lane_state_is_known",
                condition=Q(lane_state__in=["off", "running", "away"]),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def lane_is_heard(self, now: datetime) -> bool:
        """Tell whether its lane has said anything lately, good or bad."""
        return self.lane_seen_at is not None and now - self.lane_seen_at <= LANE_LIVES
