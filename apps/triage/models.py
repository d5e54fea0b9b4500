"""Operations: one decision over many poisons. A preview is an operation already."""

from __future__ import annotations

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.brokers.models import Topic
from apps.core.fields import CurrentSnapshot, SnapshotField
from apps.poison.models import Poison, Redrive
from apps.triage.querysets import ItemQuerySet, OperationQuerySet
from apps.triage.states import (
    CONFIRMED,
    FINISHED,
    SENDS,
    ItemState,
    OperationState,
    Verb,
)


def lock_name(operation_id: int) -> str:
    """Name the lock that the run of an operation holds."""
    return f"operation:{operation_id}"


class Operation(models.Model):
    """One decision over a frozen selection, as the database was at `as_of`."""

    token = models.UUIDField(unique=True, default=uuid.uuid4)
    verb = models.CharField(max_length=10)
    state = models.CharField(max_length=10, default=OperationState.PREVIEW.value)
    actor = models.TextField()
    source = models.CharField(max_length=10)
    query = models.TextField(null=True, help_text="null when chosen one by one")
    topics = ArrayField(models.TextField(), help_text="what the actor may act on")
    target_topic = models.ForeignKey(
        Topic, null=True, on_delete=models.PROTECT, related_name="+"
    )
    undo_of = models.ForeignKey(
        "self", null=True, on_delete=models.PROTECT, related_name="undone_by"
    )
    ordered = models.BooleanField(
        default=False, db_default=False, help_text="each topic's messages in order"
    )
    reason = models.TextField(default="", help_text="a draft, until confirmed")
    as_of = SnapshotField(db_default=CurrentSnapshot())
    taken = models.BooleanField(default=False, help_text="its items are all there")
    total = models.PositiveIntegerField(default=0)
    epoch = models.PositiveIntegerField(default=0, help_text="one more for each run")
    trouble = models.TextField(default="", help_text="why it is waiting, in a line")
    troubles = models.PositiveIntegerField(default=0, help_text="in a row")
    retry_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    objects = OperationQuerySet.as_manager()

    class Meta:
        db_table = "triage_operation"
        constraints = [
            models.CheckConstraint(
                name="triage_operation_verb_is_known",
                condition=Q(verb__in=[verb.value for verb in Verb]),
            ),
            models.CheckConstraint(
                name="triage_operation_state_is_known",
                condition=Q(state__in=[state.value for state in OperationState]),
            ),
            models.CheckConstraint(
                name="triage_operation_confirmed_has_confirmed_at",
                condition=Q(state__in=CONFIRMED, confirmed_at__isnull=False, taken=True)
                | (~Q(state__in=CONFIRMED) & Q(confirmed_at=None)),
            ),
            models.CheckConstraint(
                name="triage_operation_finished_has_finished_at",
                condition=Q(state__in=FINISHED, finished_at__isnull=False)
                | (~Q(state__in=FINISHED) & Q(finished_at=None)),
            ),
            models.CheckConstraint(
                name="triage_operation_drop_has_a_reason",
                condition=~Q(state__in=CONFIRMED, verb="drop") | ~Q(reason=""),
            ),
            models.CheckConstraint(
                name="triage_operation_only_a_redrive_has_a_target",
                condition=Q(verb__in=SENDS) | Q(target_topic=None),
            ),
        ]
        indexes = [
            models.Index(
                fields=["id"],
                name="triage_operation_unfinished",
                condition=Q(state__in=["queued", "running"]),
            ),
            models.Index(fields=["state", "expires_at"], name="triage_operation_stale"),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.verb} {self.state}"

    @property
    def given_back_to(self) -> str:
        """Return the dead-letter queue that has its messages again, or ""."""
        if self.verb != Verb.GIVE_BACK or self.target_topic is None:
            return ""
        items = self.items.exclude(redrive=None).order_by("id")
        queue = items.values_list("redrive__queue", flat=True).first()
        return queue or self.target_topic.dead_letter_queue


class WorkerBeat(models.Model):
    """The time at which a worker last answered: one row, updated every two seconds."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    at = models.DateTimeField()

    class Meta:
        db_table = "triage_worker_beat"
        constraints = [
            models.CheckConstraint(
                name="triage_worker_beat_is_one_row", condition=Q(id=1)
            ),
        ]

    def __str__(self) -> str:
        return f"a worker at {self.at}"


class Item(models.Model):
    """A poison of an operation. While it is `held`, no other operation may take it."""

    operation = models.ForeignKey(
        Operation, on_delete=models.CASCADE, related_name="items", db_index=False
    )
    poison = models.ForeignKey(Poison, on_delete=models.PROTECT, related_name="items")
    state = models.CharField(max_length=10, default=ItemState.WAITING.value)
    reason = models.TextField(default="", help_text="why it is skipped")
    held = models.BooleanField(default=False)
    redrive = models.OneToOneField(
        Redrive, null=True, on_delete=models.PROTECT, related_name="item"
    )

    objects = ItemQuerySet.as_manager()

    class Meta:
        db_table = "triage_item"
        constraints = [
            models.UniqueConstraint(
                fields=["operation", "poison"], name="triage_item_once"
            ),
            models.UniqueConstraint(
                fields=["poison"],
                name="triage_item_one_open_operation_per_poison",
                condition=Q(held=True),
            ),
            models.CheckConstraint(
                name="triage_item_state_is_known",
                condition=Q(state__in=[state.value for state in ItemState]),
            ),
            models.CheckConstraint(
                name="triage_item_claimed_has_a_redrive",
                condition=Q(state="claimed", redrive__isnull=False)
                | (~Q(state="claimed") & Q(redrive=None)),
            ),
            models.CheckConstraint(
                name="triage_item_skipped_has_a_reason",
                condition=Q(state="skipped") & ~Q(reason="")
                | (~Q(state="skipped") & Q(reason="")),
            ),
            models.CheckConstraint(
                name="triage_item_is_held_only_while_open",
                condition=Q(held=False) | Q(state__in=["waiting", "claimed"]),
            ),
        ]
        indexes = [
            models.Index(
                fields=["operation", "id"],
                name="triage_item_waiting",
                condition=Q(state="waiting"),
            ),
            models.Index(
                fields=["operation", "state", "id"], name="triage_item_by_state"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operation_id}/{self.poison_id} {self.state}"

    @property
    def explanation(self) -> str:
        """Return why the item was skipped, or the broker's answer."""
        return self.reason or (self.redrive.detail if self.redrive else "")
