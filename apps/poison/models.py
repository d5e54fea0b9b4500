"""THE RECORD: poisons with their problems, failures, bodies, redrives and skips.

`Poison` is narrow, so that lists stay fast at ten million rows. `Failure` and `Body`
are partitioned by the day of their capture: old days are removed as partitions.
A foreign key has no index of its own if a wider index begins with it: a poison changes
its state often, and each change is written to every index.
"""

from __future__ import annotations

from datetime import datetime

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Func, Q

from apps.brokers.models import Topic
from apps.core.fields import CurrentTransaction, TransactionIdField
from apps.core.ids import unraw
from apps.core.text import storable
from apps.poison.querysets import (
    BodyQuerySet,
    PoisonQuerySet,
    ProblemQuerySet,
    SkipQuerySet,
    WaitingSkipQuerySet,
)
from apps.poison.states import (
    DISPLAY_STATES,
    GIVEN_BACK,
    IN_FLIGHT,
    Because,
    DisplayState,
    Outcome,
    State,
    silent_before,
)
from poisonguard.contract import MatcherKind


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
        return DISPLAY_STATES[State(self.state)]

    @property
    def word(self) -> str:
        """Return the label for pages: finer than `display_state` while it is sent."""
        if self.state == State.REDRIVING:
            return "sending"
        return "given back" if self.is_given_back else self.display_state.value

    @property
    def is_given_back(self) -> bool:
        """Tell whether it was given back, unchanged, to its dead-letter queue.

        A redrive to its own topic is `redriven`: only a give back moves it there.
        """
        return self.state == State.MOVED and self.moved_to_id == self.topic_id

    @property
    def bookmark_text(self) -> str:
        return storable(unraw(self.bookmark))

    def silent(self, now: datetime) -> bool:
        """Tell whether it was sent ten minutes ago and no answer has come."""
        return (
            self.state == State.REDRIVEN
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

    class Meta:
        db_table = "poison_failure"

    def __str__(self) -> str:
        return f"{self.poison_id} {self.error_type}"


class Redrive(models.Model):
    """One send of a poison; every copy of that send carries its signed id.

    A redrive with a `queue` was given back to it, unchanged and without the id.
    """

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
    queue = models.TextField(
        default="",
        db_default="",
        help_text="the dead-letter queue that has it again",
    )
    digest = models.BinaryField(
        null=True, help_text="of its body, where it bears no mark to be known by"
    )
    outcome = models.CharField(max_length=10, default=Outcome.SENDING.value)
    detail = models.TextField(default="")
    bookmark = models.TextField(default="", help_text="where the broker put it")
    epoch = models.PositiveIntegerField(help_text="of the run that last sent it")
    copies = models.PositiveIntegerField(default=1)
    claimed_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    # Stays set if the message fails again later: then it was both.
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
            # For the nightly report, by time. Rows lie in the order of their claims.
            BrinIndex(
                fields=["sent_at", "confirmed_at", "answered_at"],
                name="poison_redrive_times",
            ),
            models.Index(
                fields=["topic", "digest"],
                name="poison_redrive_unmarked",
                condition=Q(digest__isnull=False),
            ),
            models.Index(fields=["topic"], name="poison_redrive_by_topic"),
        ]

    def __str__(self) -> str:
        return f"{self.poison_id} n={self.n} {self.outcome}"

    @property
    def word(self) -> str:
        """Return the label of the outcome; a redrive given back has its own labels."""
        return (
            GIVEN_BACK.get(self.outcome, self.outcome) if self.queue else self.outcome
        )


class StoreEpoch(models.Model):
    """One row, never changed: it names this store, with facts about Postgres itself."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    value = models.UUIDField()

    class Meta:
        db_table = "poison_store_epoch"
        constraints = [
            models.CheckConstraint(name="poison_store_epoch_is_one", condition=Q(id=1)),
        ]

    def __str__(self) -> str:
        return str(self.value)


class SkipList(models.Model):
    """The skip list of one topic: each change locks this row until it commits.

    So revisions become visible in the order of their numbers. `floor` is the last
    revision whose change is deleted. `automatic` counts the active skips that capture
    made, `made` those of the minute that began at `minute`. `withheld` counts failures
    without a skip: the list was at its limits, and no `WaitingSkip` was left.
    """

    topic = models.OneToOneField(
        Topic, on_delete=models.CASCADE, primary_key=True, related_name="skip_list"
    )
    revision = models.BigIntegerField(default=0, db_default=0)
    floor = models.BigIntegerField(default=0, db_default=0)
    automatic = models.PositiveIntegerField(default=0, db_default=0)
    minute = models.DateTimeField(null=True)
    made = models.PositiveIntegerField(default=0, db_default=0)
    withheld = models.BigIntegerField(default=0, db_default=0)
    withheld_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "poison_skip_list"
        constraints = [
            models.CheckConstraint(
                name="poison_skip_list_floor_is_below",
                condition=Q(floor__gte=0, floor__lte=F("revision")),
            ),
            models.CheckConstraint(
                name="poison_skip_list_withheld_has_a_time",
                condition=Q(withheld=0, withheld_at=None)
                | Q(withheld__gt=0, withheld_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"skips of {self.topic_id} at {self.revision}"


class Skip(models.Model):
    """One matcher of messages that consumers skip, until it ends; the row stays.

    `value` is exact bytes: a bookmark, a message id or a canonical rule in UTF-8, or
    a digest in hexadecimal. Without a consumer group it is for all groups, without a
    handler version for all versions. `revision` is that of its last change,
    `removed_revision` that of its end. `redrive` is the redrive whose failure made it:
    the skip stops that redrive, but no later one of the same message.
    """

    topic = models.ForeignKey(
        Topic, on_delete=models.PROTECT, related_name="skips", db_index=False
    )
    consumer_group = models.TextField(null=True)
    kind = models.CharField(max_length=12)
    value = models.BinaryField()
    # A bookmark may be longer than an index takes.
    digest = models.GeneratedField(
        expression=Func("value", function="sha256"),
        output_field=models.BinaryField(),
        db_persist=True,
    )
    handler_version = models.TextField(null=True)
    publisher = models.TextField(null=True)
    seq = models.BigIntegerField(null=True)
    redrive = models.UUIDField(null=True)
    poison = models.ForeignKey(
        Poison,
        null=True,
        on_delete=models.SET_NULL,
        related_name="skips",
        db_index=False,
    )
    reason = models.TextField(default="")
    by = models.TextField(help_text="the actor")
    is_automatic = models.BooleanField(default=False)
    # Consumers still handle the message of a suspected skip, and report the result.
    is_suspected = models.BooleanField(default=False, db_default=False)
    firm_at = models.DateTimeField(
        null=True, help_text="when it is suspected no more, unless something is heard"
    )
    at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    revision = models.BigIntegerField()
    removed_revision = models.BigIntegerField(null=True)
    removed_at = models.DateTimeField(null=True)
    removed_by = models.TextField(default="")
    because = models.CharField(max_length=10, default="", help_text="it ended")
    removed_reason = models.TextField(default="")
    applied = models.BigIntegerField(default=0, help_text="messages passed over")
    last_applied_at = models.DateTimeField(null=True)

    objects = SkipQuerySet.as_manager()

    class Meta:
        db_table = "poison_skip"
        constraints = [
            models.UniqueConstraint(
                fields=[
                    *("digest", "topic", "kind"),
                    *("consumer_group", "handler_version"),
                ],
                name="poison_skip_active_once",
                condition=Q(removed_revision=None),
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="poison_skip_kind_is_known",
                condition=Q(kind__in=[kind.value for kind in MatcherKind]),
            ),
            models.CheckConstraint(
                name="poison_skip_ends_whole",
                condition=Q(removed_revision=None, removed_at=None, because="")
                | Q(
                    removed_revision__gt=F("revision"),
                    removed_at__isnull=False,
                    because__in=[because.value for because in Because],
                ),
            ),
            models.CheckConstraint(
                name="poison_skip_automatic_is_one_message_for_one_group",
                condition=Q(is_automatic=False)
                | Q(
                    kind="bookmark",
                    consumer_group__isnull=False,
                    expires_at__isnull=False,
                ),
            ),
            models.CheckConstraint(
                name="poison_skip_suspected_is_automatic",
                condition=Q(is_suspected=False, firm_at=None)
                | Q(is_suspected=True, is_automatic=True),
            ),
            models.CheckConstraint(
                name="poison_skip_applied_has_a_time",
                condition=Q(applied=0, last_applied_at=None)
                | Q(applied__gt=0, last_applied_at__isnull=False),
            ),
        ]
        indexes = [
            models.Index(
                fields=["topic", "revision"],
                name="poison_skip_active",
                condition=Q(removed_revision=None),
            ),
            models.Index(
                fields=["topic", "removed_revision"],
                name="poison_skip_ended",
                condition=Q(removed_revision__isnull=False),
            ),
            models.Index(
                fields=["expires_at"],
                name="poison_skip_expiry",
                condition=Q(removed_revision=None),
            ),
            models.Index(
                fields=["poison"],
                name="poison_skip_of_poison",
                condition=Q(poison__isnull=False),
            ),
            models.Index(
                fields=["-at", "-id"],
                name="poison_skip_recent",
                condition=Q(removed_revision=None),
            ),
            models.Index(
                fields=["-removed_at", "-id"],
                name="poison_skip_history",
                condition=Q(removed_revision__isnull=False),
            ),
            models.Index(fields=["topic"], name="poison_skip_by_topic"),
            models.Index(
                fields=["firm_at"],
                name="poison_skip_suspected",
                condition=Q(is_suspected=True, removed_revision=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.kind} {self.value_text}"

    @property
    def value_text(self) -> str:
        """Return the value as text for pages; `Matcher.of` has the exact bytes."""
        return storable(unraw(self.value))

    @property
    def is_active(self) -> bool:
        return self.removed_revision is None


class WaitingSkip(models.Model):
    """A failure without room on its topic's list; it gets a skip when there is room."""

    topic = models.ForeignKey(
        Topic, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    consumer_group = models.TextField()
    handler_version = models.TextField(null=True)
    bookmark = models.BinaryField()
    publisher = models.TextField(null=True)
    seq = models.BigIntegerField(null=True)
    redrive = models.UUIDField(null=True)
    poison = models.ForeignKey(
        Poison, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    reason = models.TextField()
    is_killer = models.BooleanField(help_text="its consumers die of it, or hang")
    is_suspected = models.BooleanField(default=False)
    at = models.DateTimeField()

    objects = WaitingSkipQuerySet.as_manager()

    class Meta:
        db_table = "poison_waiting_skip"
        constraints = [
            models.UniqueConstraint(
                fields=["poison", "handler_version", "redrive"],
                name="poison_waiting_skip_once",
                nulls_distinct=False,
            ),
        ]
        indexes = [
            models.Index(
                fields=["topic", "-is_killer", "id"], name="poison_waiting_skip_next"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} of {self.poison_id}"


class SkipCount(models.Model):
    """One consumer's count of skipped messages; each report counts once."""

    report = models.UUIDField(primary_key=True)
    skip = models.ForeignKey(Skip, on_delete=models.CASCADE, related_name="counts")
    consumer_group = models.TextField()
    client_name = models.TextField()
    count = models.PositiveIntegerField()
    counted_at = models.DateTimeField(db_index=True)

    class Meta:
        db_table = "poison_skip_count"

    def __str__(self) -> str:
        return f"{self.count} of {self.skip_id}"
