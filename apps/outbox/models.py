"""Outboxes that Poisonweb empties, and what their sweepers note of them."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Q

from apps.brokers.models import Broker, Topic
from apps.outbox.querysets import OutboxQuerySet
from apps.outbox.sweeper_and_row_states import QuarantineState, SweeperState
from apps.poison.models import Poison

OUTBOX_NAME_LIMIT = 100
SCHEMA_LIMIT = 63  # characters; Postgres cuts longer names
MOST_WINDOW = 10_000
# A process sweeps all of them: two threads and two sessions each.
MOST_OUTBOXES = 200
# Sweepers note what they do every second.
SWEEPER_LIVES = timedelta(seconds=15)


class Outbox(models.Model):
    """A table of messages in a producer's database, and the broker they go to.

    `url` is sealed or env:NAME, never in the clear. `schema` is that of the table; ""
    leaves it to the search path of the user. `topic` has the quarantined messages of
    topics that are not registered here. A message for a topic waits while that topic's
    slowest consumer is `most_lag` messages behind, or its queue at the broker has
    `most_depth`.
    """

    name = models.CharField(max_length=OUTBOX_NAME_LIMIT, unique=True)
    topic = models.OneToOneField(Topic, on_delete=models.PROTECT, related_name="outbox")
    broker = models.ForeignKey(
        Broker, on_delete=models.PROTECT, related_name="outboxes"
    )
    url = models.TextField()
    schema = models.CharField(max_length=SCHEMA_LIMIT, default="")
    window = models.PositiveIntegerField(help_text="messages sent at once, at most")
    most_lag = models.PositiveBigIntegerField(null=True, help_text="null: no limit")
    most_depth = models.PositiveBigIntegerField(null=True, help_text="null: no limit")
    sent_rows_days = models.PositiveIntegerField(
        help_text="how long rows that were sent stay"
    )
    sent_ids_days = models.PositiveIntegerField(
        help_text="how long a message id that was sent is recognised"
    )
    is_paused = models.BooleanField(default=False)
    version = models.PositiveIntegerField(default=1, help_text="counts its changes")
    created_at = models.DateTimeField()
    created_by = models.TextField()

    objects = OutboxQuerySet.as_manager()

    class Meta:
        db_table = "outbox_outbox"
        constraints = [
            models.CheckConstraint(
                name="outbox_outbox_window_is_bounded",
                condition=Q(window__gte=1, window__lte=MOST_WINDOW),
            ),
            models.CheckConstraint(
                name="outbox_outbox_ids_stay_longer_than_rows",
                condition=Q(
                    sent_rows_days__gte=1,
                    sent_ids_days__gte=models.F("sent_rows_days"),
                ),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class OutboxActivity(models.Model):
    """What the sweeper of an outbox notes every second.

    Counts of what waits and is quarantined are those of `counted_at`, which stays
    behind `noted_at` while the table cannot be read, and is None before the first
    count; `sent_count` and `duplicate_count` count since the outbox was added.
    """

    outbox = models.OneToOneField(
        Outbox, primary_key=True, on_delete=models.CASCADE, related_name="activity"
    )
    state = models.CharField(max_length=20, default=SweeperState.WAITING.value)
    detail = models.TextField(default="", help_text="why it is in this state")
    noted_at = models.DateTimeField(null=True)
    counted_at = models.DateTimeField(null=True)
    waiting = models.BigIntegerField(default=0)
    waiting_bytes = models.BigIntegerField(default=0)
    oldest_at = models.DateTimeField(null=True)
    quarantined = models.BigIntegerField(default=0)
    sent_count = models.BigIntegerField(default=0)
    duplicate_count = models.BigIntegerField(default=0)
    sent_per_second = models.FloatField(default=0.0)
    slowed = models.JSONField(
        default=dict, help_text="topics that are slowed, each with its reason"
    )
    flood_rows = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text="rows of one writer that were quarantined within ten minutes",
    )
    flood_writer = models.TextField(default="", db_default="", help_text="who it is")

    class Meta:
        db_table = "outbox_activity"
        constraints = [
            models.CheckConstraint(
                name="outbox_activity_state_is_known",
                condition=Q(state__in=[state.value for state in SweeperState]),
            ),
        ]

    def __str__(self) -> str:
        return f"activity of {self.outbox_id}"


class OutboxError(models.Model):
    """Errors of one kind at one step of sweeping an outbox, with their first stack."""

    outbox = models.ForeignKey(Outbox, on_delete=models.CASCADE, related_name="errors")
    step = models.CharField(max_length=40)
    kind = models.CharField(max_length=200)
    count = models.BigIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    message = models.TextField(help_text="of the last one")
    first_stack = models.TextField()

    class Meta:
        db_table = "outbox_error"
        constraints = [
            models.UniqueConstraint(
                fields=["outbox", "step", "kind"], name="outbox_error_kind_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} at {self.step}: {self.count}"


class QuarantineRecord(models.Model):
    """A row that was quarantined, its message here, and what was decided about it.

    The row is that of `message_id`: an outbox may get the address of another database.
    `poison` is None until it is captured; `redrives` is how often it had been sent
    then, so that a later send counts for the row. `is_settled`: the row in the
    producer's database agrees, as far as was decided when it was looked at.
    """

    outbox = models.ForeignKey(
        Outbox, on_delete=models.CASCADE, related_name="quarantined", db_index=False
    )
    row_id = models.BigIntegerField()
    message_id = models.TextField(default="")
    # A poison may be deleted after its retention: the row stays as it was decided.
    poison = models.ForeignKey(
        Poison,
        null=True,
        on_delete=models.DO_NOTHING,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    redrives = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=20, default=QuarantineState.QUARANTINED.value)
    is_settled = models.BooleanField(default=True)
    quarantined_at = models.DateTimeField()
    noted_at = models.DateTimeField(help_text="when it was captured or decided")
    writer_user = models.TextField(default="")
    writer_application = models.TextField(default="")
    writer_address = models.TextField(default="")

    class Meta:
        db_table = "outbox_set_aside_row"
        constraints = [
            models.UniqueConstraint(
                fields=["outbox", "row_id"], name="outbox_set_aside_row_once"
            ),
            models.CheckConstraint(
                name="outbox_set_aside_row_state_is_known",
                condition=Q(state__in=[state.value for state in QuarantineState]),
            ),
        ]
        indexes = [
            models.Index(
                fields=["outbox", "noted_at"], name="outbox_set_aside_by_time"
            ),
        ]

    def __str__(self) -> str:
        return f"row {self.row_id} of {self.outbox_id}: {self.state}"
