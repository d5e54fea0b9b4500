"""Counters of consumers, states of guards and lanes, letters that lanes hold."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.brokers.models import Topic
from apps.capture.lane_and_dead_letter_querysets import LaneQuerySet, LetterQuerySet
from apps.core.hashed_ids import unraw
from apps.core.postgres_transaction_fields import CurrentTransaction, TransactionIdField
from apps.core.text_cleaning import storable
from poisonguard.contract import GuardState


class Counter(models.Model):
    """What one consumer did in one minute. `failed` is terminal, without `skipped`.

    If `source` is the broker, `handled` is what it delivered in that minute.
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
    # The time by the consumer's clock, if that was too far off to be believed.
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


# A lane writes its state every few seconds; after this long it counts as silent.
LANE_LIVES = timedelta(seconds=20)


class Mode(StrEnum):
    """What a lane does with dead letters.

    Observe: poll, and remove nothing. Capture: store the letter, then acknowledge it.
    Tee: as capture, but send a copy to another queue before the acknowledgement.
    """

    OBSERVE = "observe"
    CAPTURE = "capture"
    TEE = "tee"


class LaneState(StrEnum):
    """The state of a lane.

    Off: it never ran. Away: its broker or Postgres is unavailable. Missing: its broker
    has no such dead-letter queue. Expected: the broker makes the queue with the first
    dead letter, so the lane polls for it. Holding: it runs, but the broker refused
    copies of some letters, which stay in their queue.
    """

    OFF = "off"
    RUNNING = "running"
    PAUSED = "paused"
    AWAY = "away"
    MISSING = "missing"
    EXPECTED = "expected"
    HOLDING = "holding"


class Lane(models.Model):
    """The settings of one topic's lane, and its state.

    People set `mode`, `tee_queue` and `paused`; the lane's process writes the rest.
    `captured` counts all letters it ever captured; `rate` is dead letters in the last
    minute; `depth` and `oldest_at` describe the queue, null if the broker cannot tell.
    `delivered_*` is the broker's delivery count at the last poll.
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

    @property
    def lock_name(self) -> str:
        """Name the lock of the process that works on the lane."""
        return f"lane:{self.pk}"

    def is_heard(self, now: datetime) -> bool:
        """Tell whether the lane wrote its state recently, good or bad."""
        return self.seen_at is not None and now - self.seen_at <= LANE_LIVES


class Sample(models.Model):
    """One dead letter as an observing lane saw it, with the start of its body."""

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
    """A dead letter without a name that is captured, and perhaps not acknowledged.

    If it is delivered again, the digest of its queue, body and headers identifies it.
    The row is deleted when the letter was acknowledged.
    """

    report_id = models.UUIDField(primary_key=True)
    topic = models.ForeignKey(
        Topic, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    digest = models.BinaryField()
    captured_at = models.DateTimeField()

    objects = LetterQuerySet.as_manager()

    class Meta:
        db_table = "capture_delivery"
        indexes = [
            models.Index(fields=["topic", "digest"], name="capture_delivery_by_digest"),
        ]

    def __str__(self) -> str:
        return f"{self.topic_id} {self.report_id}"


class HeldDeadLetter(models.Model):
    """A dead letter that cannot be captured: it stays, unacknowledged, in its queue."""

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
    """A message over the body limit that its consumer gave up on; its broker keeps it.

    `identity` is what its poison would have. `times` counts its reports.
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
        """Return the bookmark of an oversize message as text that pages can hold."""
        return storable(unraw(self.bookmark))

    @property
    def digest_text(self) -> str:
        """Return the SHA-256 of the oversize message's body in hex."""
        return bytes(self.digest).hex()


class Guard(models.Model):
    """The last heartbeat of one guard in one process; `since` dates its state.

    `at` and `since` are by the guard's clock, if it is believed; `heard_at` is by ours.
    `version` is the SDK's, `handler_version` the user's.
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
