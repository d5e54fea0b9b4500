"""IN: what consumers counted, how their guards are, and what the lanes had to leave."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.brokers.models import Topic
from apps.capture.querysets import DeliveryQuerySet, LaneQuerySet
from apps.core.fields import CurrentTransaction, TransactionIdField
from apps.core.ids import unraw
from apps.core.text import storable


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


# A lane tells how it is every few seconds; this long without a word is too long.
LANE_LIVES = timedelta(seconds=20)


class Mode(StrEnum):
    """What a lane does with dead letters.

    Observe: it looks and removes nothing. Capture: into the record, then out of the
    queue. Tee: the same, with a copy to another queue before it is acknowledged.
    """

    OBSERVE = "observe"
    CAPTURE = "capture"
    TEE = "tee"


class LaneState(StrEnum):
    """How a lane is: off it was never heard; away its broker or Postgres is.

    Missing is the dead-letter queue, of which the broker says that there is none;
    expected is one that the first dead letter makes, so that its lane looks for it.
    Holding, it goes on but for letters whose copies are refused, which stay.
    """

    OFF = "off"
    RUNNING = "running"
    PAUSED = "paused"
    AWAY = "away"
    MISSING = "missing"
    EXPECTED = "expected"
    HOLDING = "holding"


class Lane(models.Model):
    """What is to be done with one topic's dead letters, and how that goes.

    `mode`, `tee_queue` and `paused` are people's; the rest is what the lane's process
    last said. `captured` counts all it ever took; `rate` is dead letters a minute of
    late; `depth` and `oldest_at` are the queue's, null where the broker cannot tell.
    `delivered_*` is what the broker had delivered when that was last noted.
    """

    topic = models.OneToOneField(
        Topic, primary_key=True, on_delete=models.CASCADE, related_name="lane"
    )
    mode = models.CharField(max_length=10, default=Mode.OBSERVE.value)
    tee_queue = models.TextField(default="", help_text="by the broker's own name")
    paused = models.BooleanField(default=False)
    state = models.CharField(max_length=10, default=LaneState.OFF.value)
    detail = models.TextField(default="")
    seen_at = models.DateTimeField(null=True)
    depth = models.BigIntegerField(null=True)
    oldest_at = models.DateTimeField(null=True)
    captured = models.BigIntegerField(default=0)
    rate = models.FloatField(default=0.0)
    error = models.TextField(default="", help_text="the last one, also when it is over")
    error_at = models.DateTimeField(null=True)
    delivered_total = models.BigIntegerField(null=True)
    delivered_since = models.TextField(default="")
    delivered_at = models.DateTimeField(null=True)

    objects = LaneQuerySet.as_manager()

    class Meta:
        db_table = "capture_lane"
        constraints = [
            models.CheckConstraint(
                name="capture_lane_mode_is_known",
                condition=Q(mode__in=[mode.value for mode in Mode]),
            ),
            models.CheckConstraint(
                name="capture_lane_state_is_known",
                condition=Q(state__in=[state.value for state in LaneState]),
            ),
            models.CheckConstraint(
                name="capture_lane_tees_to_a_queue",
                condition=Q(mode="tee") & ~Q(tee_queue="")
                | (~Q(mode="tee") & Q(tee_queue="")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.mode}"

    def is_heard(self, now: datetime) -> bool:
        """Tell whether it has said anything lately, good or bad."""
        return self.seen_at is not None and now - self.seen_at <= LANE_LIVES


class Sample(models.Model):
    """One dead letter as a lane that observes saw it, its body cut; no copy of it."""

    topic = models.ForeignKey(Topic, on_delete=models.CASCADE, related_name="samples")
    place = models.PositiveSmallIntegerField(help_text="0 is the oldest")
    bookmark = models.TextField()
    start = models.BinaryField(help_text="of the body")
    size = models.BigIntegerField()
    headers = ArrayField(models.BinaryField(), help_text="names and values in turn")
    dequeue_count = models.BigIntegerField(null=True)
    seen_at = models.DateTimeField()

    class Meta:
        db_table = "capture_sample"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "place"], name="capture_sample_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.place}"


class Delivery(models.Model):
    """A dead letter without a name that is written down, and perhaps not acknowledged.

    Handed out again, it is known by its digest: that of its queue, body and headers.
    The row goes when its broker was told to remove the letter.
    """

    report_id = models.UUIDField(primary_key=True)
    topic = models.ForeignKey(
        Topic, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    digest = models.BinaryField()
    captured_at = models.DateTimeField()

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        db_table = "capture_delivery"
        indexes = [
            models.Index(fields=["topic", "digest"], name="capture_delivery_by_digest"),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.report_id}"


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


class OversizeMessage(models.Model):
    """A message that its consumer gave up on and we cannot take: its broker has it.

    `identity` is what a poison of it would have. `times` counts how often it was told.
    """

    identity = models.BinaryField(primary_key=True)
    topic = models.ForeignKey(
        Topic, on_delete=models.CASCADE, related_name="oversize", db_index=False
    )
    consumer_group = models.TextField()
    client_name = models.TextField(help_text="that told it last")
    host = models.TextField(null=True)
    bookmark = models.BinaryField()
    message_id = models.TextField(null=True)
    size = models.BigIntegerField(help_text="bytes of the body")
    digest = models.BinaryField(help_text="SHA-256 of the body")
    cause = models.CharField(max_length=20)
    error = models.TextField()
    first_seen_at = models.DateTimeField()
    seen_at = models.DateTimeField(db_index=True)
    times = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "capture_oversize_message"
        indexes = [
            models.Index(
                fields=["topic", "-seen_at"], name="capture_oversize_by_topic"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.bookmark_text}"

    @property
    def bookmark_text(self) -> str:
        return storable(unraw(self.bookmark))

    @property
    def digest_text(self) -> str:
        return bytes(self.digest).hex()


class GuardState(StrEnum):
    """How a guard is: paused it takes no message, holding it waits for the server."""

    RUNNING = "running"
    PAUSED = "paused"
    HOLDING = "holding"
    STOPPING = "stopping"


class Guard(models.Model):
    """What one guard, in one process, last said of itself; `since` dates its state.

    `at` and `since` are of its own clock, as far as that is believed; `heard_at` is of
    ours. `version` is the SDK's, `handler_version` its user's.
    """

    reporter = models.UUIDField()
    topic = models.ForeignKey(
        Topic, on_delete=models.CASCADE, related_name="guards", db_index=False
    )
    consumer_group = models.TextField()
    client_name = models.TextField()
    host = models.TextField(null=True)
    version = models.TextField(null=True)
    handler_version = models.TextField(null=True)
    state = models.CharField(max_length=10)
    detail = models.TextField(help_text="why it is in this state")
    skips_age = models.FloatField(null=True, help_text="seconds; null: no list yet")
    spooled = models.BigIntegerField(help_text="reports that wait on its disk")
    suspected = models.BigIntegerField(help_text="messages that it withholds")
    contradicted = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="messages that it failed on and another consumer handled",
    )
    journal = models.BooleanField(help_text="it can tell a crash from a stop")
    at = models.DateTimeField()
    since = models.DateTimeField()
    heard_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "capture_guard"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "client_name", "reporter"],
                name="capture_guard_once",
            ),
            models.CheckConstraint(
                name="capture_guard_state_is_known",
                condition=Q(state__in=[state.value for state in GuardState]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.client_name} {self.state}"
