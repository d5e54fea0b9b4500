"""THE RECORD AND ITS STATES: what failed, why, how often, and what was done about it.

`Poison` is narrow, so that lists stay fast at ten million rows. `Failure` and `Body`
are partitioned by the day of their capture: old days leave by dropping a partition.
A foreign key has no index of its own where a wider one begins with it: a poison changes
its state often, and each change is written to every index.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Q

from apps.brokers.models import Topic
from apps.core.fields import CurrentTransaction, TransactionIdField
from apps.core.ids import unraw
from apps.core.text import storable
from apps.poison.querysets import PoisonQuerySet, ProblemQuerySet
from apps.poison.states import (
    IN_FLIGHT,
    SHOWN,
    SILENT_AFTER_SECONDS,
    Outcome,
    Shown,
    State,
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
    state = models.CharField(max_length=10, default=State.OPEN.value)
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
                condition=Q(state__in=[state.value for state in State]),
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
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.state}"

    @property
    def shown(self) -> Shown:
        return SHOWN[State(self.state)]

    @property
    def bookmark_text(self) -> str:
        return storable(unraw(self.bookmark))

    def silent(self, now: datetime) -> bool:
        """Tell whether it was sent and nobody has been heard of for ten minutes."""
        limit = timedelta(seconds=SILENT_AFTER_SECONDS)
        return (
            self.state == State.REDRIVEN
            and self.sent_at is not None
            and now - self.sent_at > limit
        )


class Alias(models.Model):
    """Another identity of a poison: the bookmark that its redriven copy was given."""

    identity = models.BinaryField(primary_key=True)
    poison = models.ForeignKey(Poison, on_delete=models.CASCADE, related_name="aliases")
    bookmark = models.BinaryField()

    class Meta:
        db_table = "poison_alias"

    def __str__(self) -> str:
        return storable(unraw(self.bookmark))


class Body(models.Model):
    """The message itself, byte for byte. No list reads this table.

    `headers` is flat: name, value, name, value, in the order in which they came.
    """

    pk = models.CompositePrimaryKey("day", "poison")
    day = models.DateField(help_text="UTC day of capture; the partition")
    poison = models.ForeignKey(
        Poison, on_delete=models.CASCADE, related_name="bodies", db_constraint=False
    )
    content = models.BinaryField()
    headers = ArrayField(models.BinaryField(), default=list)
    content_type = models.TextField(null=True)

    class Meta:
        db_table = "poison_body"

    def __str__(self) -> str:
        return f"body of {self.poison_id}"


class Failure(models.Model):
    """One occurrence of failing, as its consumer or broker told it."""

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
    redrive = models.UUIDField(null=True)
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
    first_failed_at = models.DateTimeField()
    failed_at = models.DateTimeField()
    # As the consumer's clock had it, where that was too far off to be believed.
    failed_at_claimed = models.DateTimeField(null=True)
    captured_at = models.DateTimeField()
    captured_xid = TransactionIdField(db_default=CurrentTransaction())

    class Meta:
        db_table = "poison_failure"

    def __str__(self) -> str:
        return f"{self.poison_id} {self.error_type}"


class Redrive(models.Model):
    """One send of a poison; every copy of that send bears its id, signed."""

    id = models.UUIDField(primary_key=True)
    poison = models.ForeignKey(
        Poison,
        on_delete=models.PROTECT,
        related_name="redrives_made",
        db_index=False,
    )
    n = models.PositiveIntegerField()
    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    outcome = models.CharField(max_length=10, default=Outcome.SENDING.value)
    detail = models.TextField(default="")
    bookmark = models.TextField(default="", help_text="where the broker put it")
    epoch = models.PositiveIntegerField(help_text="of the run that last sent it")
    copies = models.PositiveIntegerField(default=1)
    claimed_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    # Kept when it comes back later: then it has been both.
    confirmed_at = models.DateTimeField(null=True)
    answered_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "poison_redrive"
        constraints = [
            models.UniqueConstraint(
                fields=["poison", "n"], name="poison_redrive_n_once"
            ),
            models.UniqueConstraint(
                fields=["poison"],
                name="poison_redrive_one_in_flight",
                condition=Q(outcome__in=IN_FLIGHT),
            ),
            models.CheckConstraint(
                name="poison_redrive_outcome_is_known",
                condition=Q(outcome__in=[outcome.value for outcome in Outcome]),
            ),
            models.CheckConstraint(
                name="poison_redrive_sent_has_sent_at",
                condition=Q(outcome__in=[*IN_FLIGHT, "refused"], sent_at=None)
                | (~Q(outcome__in=[*IN_FLIGHT, "refused"]) & Q(sent_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="poison_redrive_answer_has_a_time",
                condition=Q(
                    outcome__in=["confirmed", "recurred"], answered_at__isnull=False
                )
                | (~Q(outcome__in=["confirmed", "recurred"]) & Q(answered_at=None)),
            ),
            models.CheckConstraint(
                name="poison_redrive_only_an_answered_was_confirmed",
                condition=Q(outcome__in=["confirmed", "recurred"])
                | Q(confirmed_at=None),
            ),
        ]
        indexes = [
            # The nightly report asks by time. Rows lie in the order of their claims.
            BrinIndex(
                fields=["sent_at", "confirmed_at", "answered_at"],
                name="poison_redrive_times",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.poison_id} n={self.n} {self.outcome}"
