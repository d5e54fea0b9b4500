"""Operations: one decision over many items. A preview is an operation already."""

from __future__ import annotations

import uuid
from datetime import datetime
from functools import reduce
from operator import or_

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.brokers.models import Topic
from apps.core.postgres_transaction_fields import CurrentSnapshot, SnapshotField
from apps.poison.models import Redrive
from apps.poison.states import silent_before
from apps.triage.operation_querysets import OperationQuerySet
from apps.triage.operation_states import (
    ACTIVE,
    CONFIRMED,
    FINISHED,
    LAYOUT,
    LAYOUT_BEFORE,
    LAYOUT_OF_OTHER_KINDS,
    LAYOUTS,
    PACED,
    SENDS,
    UNDO_WINDOW,
    VERBS,
    ItemKindName,
    OperationState,
    Verb,
)

# Items of a window: as many as one kill may send twice.
WINDOW_SIZE = 500


def lock_name(operation_id: int) -> str:
    """Return the name of the lock that the run of an operation takes."""
    return f"operation:{operation_id}"


def _has_a_verb_of_its_kind() -> Q:
    conditions = [
        Q(kind=kind.value, verb__in=[verb.value for verb in verbs])
        for kind, verbs in VERBS.items()
    ]
    return reduce(or_, conditions)


class Operation(models.Model):
    """One decision over a frozen selection, as the database was at `as_of`."""

    token = models.UUIDField(unique=True, default=uuid.uuid4)
    kind = models.CharField(
        max_length=10,
        default=ItemKindName.POISON.value,
        db_default=ItemKindName.POISON.value,
        help_text="what its items are",
    )
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
    retry_of = models.ForeignKey(
        "self", null=True, on_delete=models.PROTECT, related_name="retried_by"
    )
    standings = ArrayField(
        models.TextField(),
        default=list,
        db_default=[],
        help_text="of the messages of `retry_of` that are sent again",
    )
    ordered = models.BooleanField(
        default=False, db_default=False, help_text="each topic's messages in order"
    )
    reason = models.TextField(default="", help_text="a draft, until confirmed")
    as_of = SnapshotField(db_default=CurrentSnapshot())
    taken = models.BooleanField(default=False, help_text="its items are all there")
    total = models.PositiveIntegerField(default=0)
    window_size = models.PositiveSmallIntegerField(
        default=WINDOW_SIZE, db_default=WINDOW_SIZE
    )
    will_act = models.PositiveIntegerField(
        default=0, db_default=0, help_text="items that its preview did not skip"
    )
    breakdown = models.JSONField(null=True, help_text="of its items, when taken")
    newest = models.BigIntegerField(
        null=True, help_text="id of the newest message when it was asked for"
    )
    judged = models.PositiveIntegerField(
        default=0, db_default=0, help_text="items that it holds, acted on or skipped"
    )
    run = models.PositiveIntegerField(
        default=0, db_default=0, help_text="one more for each run"
    )
    rate = models.PositiveIntegerField(
        null=True, help_text="messages a second, at most"
    )
    paused_because = models.TextField(
        default="", db_default="", help_text="why it paused itself"
    )
    ramp = models.JSONField(null=True, help_text="the steps, and what each must show")
    ramp_begins_at = models.PositiveIntegerField(
        default=0, db_default=0, help_text="number after the windows begun by then"
    )
    ramp_after_run = models.PositiveIntegerField(
        default=0, db_default=0, help_text="the last run before its first step"
    )
    ramp_to = models.PositiveIntegerField(
        default=0, db_default=0, help_text="messages that its steps so far allow"
    )
    ramp_waits_since = models.DateTimeField(null=True)
    pace_since = models.DateTimeField(
        null=True, help_text="when it last began to go on, or its rate changed"
    )
    pace_since_finished = models.PositiveIntegerField(
        default=0, db_default=0, help_text="items that it had finished then"
    )
    layout = models.PositiveSmallIntegerField(
        default=LAYOUT,
        db_default=LAYOUT_BEFORE,
        help_text="1: its items are in `triage_item`",
    )
    epoch = models.PositiveIntegerField(default=0, help_text="of runs of layout 1")
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
                condition=_has_a_verb_of_its_kind(),
            ),
            models.CheckConstraint(
                name="triage_operation_layout_is_of_its_kind",
                condition=Q(
                    kind=ItemKindName.POISON.value, layout__lt=LAYOUT_OF_OTHER_KINDS
                )
                | ~Q(kind=ItemKindName.POISON.value) & Q(layout=LAYOUT_OF_OTHER_KINDS),
            ),
            models.CheckConstraint(
                name="triage_operation_state_is_known",
                condition=Q(state__in=[state.value for state in OperationState]),
            ),
            models.CheckConstraint(
                name="triage_operation_confirmed_has_confirmed_at",
                condition=Q(state__in=CONFIRMED, confirmed_at__isnull=False)
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
                condition=Q(state__in=ACTIVE),
            ),
            models.Index(fields=["state", "expires_at"], name="triage_operation_stale"),
            models.Index(
                fields=["id"],
                name="triage_operation_to_convert",
                condition=~Q(layout=LAYOUT),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.verb} {self.state}"

    @property
    def is_taken(self) -> bool:
        """Tell whether the operation's items are all in this release's tables."""
        return self.taken and self.layout in LAYOUTS

    @property
    def is_about_poisons(self) -> bool:
        return self.kind == ItemKindName.POISON

    @property
    def may_have_a_rate(self) -> bool:
        """Tell whether an operation of this kind and verb may have a rate.

        It may where it reaches consumers or back ends, and so can be slowed down.
        """
        return (ItemKindName(self.kind), Verb(self.verb)) in PACED

    def is_long_over(self, now: datetime) -> bool:
        """Tell whether it ended so long ago that what has no answer yet is silent."""
        return self.finished_at is not None and self.finished_at < silent_before(now)

    @property
    def undo_ends_at(self) -> datetime | None:
        """Return until when this drop can be undone; None if it has not ended.

        None for other verbs, too: they cannot be undone.
        """
        if self.verb != Verb.DROP or self.finished_at is None:
            return None
        return self.finished_at + UNDO_WINDOW

    @property
    def given_back_to(self) -> str:
        """Return the dead-letter queue that got the messages back, or ""."""
        if self.verb != Verb.GIVE_BACK or self.target_topic is None:
            return ""
        first = self.items.order_by("number").first()
        queue = (
            first
            and Redrive.objects.filter(poison=first.poison_id, operation=self.pk)
            .values_list("queue", flat=True)
            .first()
        )
        return queue or self.target_topic.dead_letter_queue
