"""Poisons with their problems, failures and bodies.

`Poison` is narrow, so that lists stay fast at ten million rows. `Failure` and `Body`
are partitioned by the day of their capture: old days are removed as partitions.
"""

from __future__ import annotations

from datetime import datetime

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.brokers.models import Topic
from apps.core.hashed_ids import unraw
from apps.core.postgres_transaction_fields import CurrentTransaction, TransactionIdField
from apps.core.text_cleaning import storable
from apps.poison.querysets import BodyQuerySet, PoisonQuerySet, ProblemQuerySet
from apps.poison.states import (
    DISPLAY_STATES,
    DisplayState,
    PoisonState,
    silent_before,
)


class Problem(models.Model):
    """The poisons of one topic and consumer group that failed for the same reason."""

    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="problems", db_index=False
    )
    consumer_group = models.TextField()
    fingerprint = models.BinaryField()
    version = models.PositiveSmallIntegerField(help_text="of the classifier")
    title = models.TextField()
    summary = models.TextField()
    inputs = ArrayField(models.TextField())
    first_seen = models.DateTimeField()
    last_seen = models.DateTimeField()

    objects = ProblemQuerySet.as_manager()

    class Meta:
        db_table = "poison_problem"
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "fingerprint", "version"],
                name="poison_problem_once",
            ),
            models.CheckConstraint(
                name="poison_problem_is_seen_in_order",
                condition=Q(first_seen__lte=F("last_seen")),
            ),
        ]
        indexes = [
            models.Index(fields=["-last_seen", "-id"], name="poison_problem_recent"),
        ]

    def __str__(self) -> str:
        return f"{self.title} {self.summary}"


class Poison(models.Model):
    """One message that its consumer cannot process.

    `identity` is the SHA-256 of (topic, consumer group, bookmark); the same identity
    with another body is another poison under the next `reuse`.
    """

    identity = models.BinaryField()
    reuse = models.SmallIntegerField(default=0)
    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="poisons", db_index=False
    )
    consumer_group = models.TextField()
    bookmark = models.BinaryField()
    message_id = models.TextField(null=True)
    problem = models.ForeignKey(
        Problem, on_delete=models.PROTECT, related_name="poisons", db_index=False
    )
    state = models.CharField(max_length=10, default=PoisonState.OPEN.value)
    cause = models.CharField(max_length=20)
    error_type = models.TextField()
    error_message = models.TextField(help_text="one line, for lists")
    size = models.BigIntegerField(help_text="bytes of the body")
    digest = models.BinaryField(help_text="SHA-256 of the body")
    failures = models.PositiveIntegerField(default=0)
    attempts = models.PositiveIntegerField(default=0)
    crashes = models.PositiveIntegerField(default=0)
    redrives = models.PositiveIntegerField(default=0)
    recurrences = models.PositiveIntegerField(default=0)
    first_failed_at = models.DateTimeField()
    last_failed_at = models.DateTimeField()
    captured_at = models.DateTimeField()
    captured_xid = TransactionIdField(db_default=CurrentTransaction())
    sent_at = models.DateTimeField(null=True)
    dropped_at = models.DateTimeField(null=True)
    suspected = models.BooleanField(
        default=False,
        db_default=False,
        help_text="every consumer that failed with it may itself be what is sick",
    )
    moved_to = models.ForeignKey(
        Topic, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    objects = PoisonQuerySet.as_manager()

    class Meta:
        db_table = "poison_poison"
        constraints = [
            models.UniqueConstraint(
                fields=["identity", "reuse"], name="poison_identity_once"
            ),
            models.CheckConstraint(
                name="poison_state_is_known",
                condition=Q(state__in=[state.value for state in PoisonState]),
            ),
            models.CheckConstraint(
                name="poison_dropped_has_dropped_at",
                condition=Q(state="dropped", dropped_at__isnull=False)
                | (~Q(state="dropped") & Q(dropped_at=None)),
            ),
            models.CheckConstraint(
                name="poison_moved_has_moved_to",
                condition=Q(state="moved", moved_to__isnull=False)
                | (~Q(state="moved") & Q(moved_to=None)),
            ),
            models.CheckConstraint(
                name="poison_redriven_has_sent_at",
                condition=~Q(state__in=["redriven", "moved", "confirmed"])
                | Q(sent_at__isnull=False),
            ),
            models.CheckConstraint(
                name="poison_sent_was_redriven",
                condition=Q(state__in=["open", "dropped"]) | Q(redrives__gte=1),
            ),
            models.CheckConstraint(
                name="poison_recurs_once_a_redrive",
                condition=Q(recurrences__lte=F("redrives")),
            ),
            models.CheckConstraint(
                name="poison_failed_in_order",
                condition=Q(first_failed_at__lte=F("last_failed_at")),
            ),
        ]
        indexes = [
            models.Index(fields=["-last_failed_at", "-id"], name="poison_recent"),
            models.Index(
                fields=["state", "-last_failed_at", "-id"], name="poison_by_state"
            ),
            models.Index(
                fields=["topic", "-last_failed_at", "-id"], name="poison_by_topic"
            ),
            models.Index(
                fields=["problem", "state", "-last_failed_at", "-id"],
                name="poison_by_problem",
            ),
            # To remove a topic, Postgres looks it up in each table that refers to it.
            models.Index(
                fields=["moved_to"],
                name="poison_moved",
                condition=Q(moved_to__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.state}"

    @property
    def display_state(self) -> DisplayState:
        """Return the poison's state as pages and the API show it."""
        return DISPLAY_STATES[PoisonState(self.state)]

    @property
    def label(self) -> str:
        """Return the poison's label on pages: finer than its state while sent."""
        if self.state == PoisonState.REDRIVING:
            return "sending"
        return "given back" if self.is_given_back else self.display_state.value

    @property
    def is_given_back(self) -> bool:
        """Tell whether the poison was given back to its dead-letter queue.

        A redrive to its own topic is `redriven`: only a give back moves it there.
        """
        return self.state == PoisonState.MOVED and self.moved_to_id == self.topic_id

    @property
    def bookmark_text(self) -> str:
        """Return the poison's bookmark as text that pages and Postgres can hold."""
        return storable(unraw(self.bookmark))

    def silent(self, now: datetime) -> bool:
        """Tell whether the poison was sent ten minutes ago and not answered."""
        return (
            self.state == PoisonState.REDRIVEN
            and self.sent_at is not None
            and self.sent_at < silent_before(now)
        )


class Alias(models.Model):
    """Another identity of a poison: the bookmark of its redriven copy."""

    identity = models.BinaryField(primary_key=True)
    poison = models.ForeignKey(Poison, on_delete=models.CASCADE, related_name="aliases")
    bookmark = models.BinaryField()

    class Meta:
        db_table = "poison_alias"

    def __str__(self) -> str:
        return storable(unraw(self.bookmark))


class Body(models.Model):
    """The message itself, byte for byte. No list reads this table.

    `headers` is flat: name, value, name, value, in their original order.
    """

    pk = models.CompositePrimaryKey("day", "poison")
    day = models.DateField(help_text="UTC day of capture; the partition")
    poison = models.ForeignKey(
        Poison, on_delete=models.CASCADE, related_name="bodies", db_constraint=False
    )
    content = models.BinaryField()
    headers = ArrayField(models.BinaryField(), default=list)
    content_type = models.TextField(null=True)

    objects = BodyQuerySet.as_manager()

    class Meta:
        db_table = "poison_body"

    def __str__(self) -> str:
        return f"body of {self.poison_id}"


class Failure(models.Model):
    """One failure, as its consumer or broker reported it."""

    pk = models.CompositePrimaryKey("day", "id")
    day = models.DateField(help_text="UTC day of capture; the partition")
    id = models.BigIntegerField()
    poison = models.ForeignKey(
        Poison,
        on_delete=models.CASCADE,
        related_name="failures_seen",
        db_constraint=False,
    )
    problem = models.ForeignKey(
        Problem, on_delete=models.PROTECT, related_name="+", db_constraint=False
    )
    report_id = models.UUIDField()
    is_first = models.BooleanField(
        default=False, db_default=False, help_text="it made its poison"
    )
    suspected = models.BooleanField(
        default=False, db_default=False, help_text="its consumer may be what is sick"
    )
    redrive = models.UUIDField(null=True)
    ambiguous = models.BooleanField(
        default=False,
        db_default=False,
        help_text="others with the same body had been sent: it may be one of theirs",
    )
    bookmark = models.BinaryField()
    cause = models.CharField(max_length=20)
    error_type = models.TextField()
    error_message = models.TextField()
    traceback = models.TextField()
    client_name = models.TextField()
    sub_id = models.TextField(null=True)
    host = models.TextField(null=True)
    handler_version = models.TextField(null=True)
    attempts = models.PositiveIntegerField()
    failures = models.PositiveIntegerField()
    crashes = models.PositiveIntegerField()
    dequeue_count = models.PositiveIntegerField(null=True)
    dequeue_count_source = models.CharField(
        max_length=10,
        default="",
        db_default="",
        help_text="broker, or policy: only so many deliveries lead to its queue",
    )
    first_failed_at = models.DateTimeField()
    failed_at = models.DateTimeField()
    # The time by the consumer's clock, if that was too far off to be believed.
    failed_at_claimed = models.DateTimeField(null=True)
    captured_at = models.DateTimeField()
    captured_xid = TransactionIdField(db_default=CurrentTransaction())
    # Whether later ones of its minute are counted in it. It never changes: the index
    # is not written for each of them. See `FoldedReports`.
    folds = models.BooleanField(default=False, db_default=False)
    times = models.IntegerField(
        default=1, db_default=1, help_text="failures within a minute it stands for"
    )
    last_failed_at = models.DateTimeField(
        null=True, help_text="the last of them, whose texts it has"
    )

    class Meta:
        db_table = "poison_failure"
        indexes = [
            models.Index(
                fields=["problem", "failed_at"],
                name="poison_failure_folds",
                condition=Q(folds=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.poison_id} {self.error_type}"


class FoldedReports(models.Model):
    """Ids of reports without a failure of their own: another one stands for them.

    They are kept for a day, so that a report that is sent again counts once. `part`
    numbers the rows of a bucket.
    """

    pk = models.CompositePrimaryKey("poison", "bucket", "part")
    poison = models.ForeignKey(
        Poison, on_delete=models.CASCADE, related_name="+", db_constraint=False
    )
    bucket = models.SmallIntegerField(help_text="of the report's id")
    part = models.IntegerField()
    day = models.DateField(help_text="UTC day of the last capture")
    reports = ArrayField(models.UUIDField())

    class Meta:
        db_table = "poison_folded_reports"

    def __str__(self) -> str:
        return f"{self.poison_id}/{self.bucket}/{self.part}"
