"""Skips: what consumers pass over, and the list of each topic."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Func, Q

from apps.brokers.models import Topic
from apps.core.hashed_ids import unraw
from apps.core.text_cleaning import storable
from apps.poison.models.messages import Poison
from apps.poison.querysets import SkipQuerySet, WaitingSkipQuerySet
from apps.poison.states import Because
from poisonguard.contract import MatcherKind


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
            models.Index(
                fields=["topic"],
                name="poison_skip_rules",
                condition=Q(kind=MatcherKind.RULE.value, removed_revision=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.kind} {self.value_text}"

    @property
    def value_text(self) -> str:
        """Return the skip's value as text for pages; `Matcher.of` has the bytes."""
        return storable(unraw(self.value))

    @property
    def is_active(self) -> bool:
        """Tell whether nothing has ended the skip; one may have expired meanwhile."""
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
