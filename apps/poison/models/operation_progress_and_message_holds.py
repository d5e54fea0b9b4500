"""What an operation may still send, and how far it has come.

Operations belong to an app above this one, so their ids are plain numbers here.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from django.db import models
from django.db.models import F, Q

from apps.poison.models.messages import Poison
from apps.poison.querysets import WindowQuerySet
from apps.poison.states import COUNTED, WindowState

_COUNTED = reduce(add, map(F, COUNTED))


class ItemWindow(models.Model):
    """Consecutive items of an operation, which a run claims together; with counts.

    `first` is the number of its first item, `run` the run that claimed it last,
    `sending_to` the number after the last item that may have been handed to a broker,
    or on which it acted in the database.
    Each count is of items; an item is counted at most once, and an item that no count
    has is waiting.
    """

    pk = models.CompositePrimaryKey("operation", "first")
    operation = models.BigIntegerField()
    first = models.PositiveIntegerField()
    items = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=10, default=WindowState.WAITING.value)
    run = models.PositiveIntegerField(default=0)
    sending_to = models.PositiveIntegerField(default=0)
    marked_at = models.DateTimeField(null=True)
    sending = models.PositiveSmallIntegerField(default=0)
    unknown = models.PositiveSmallIntegerField(default=0)
    sent = models.PositiveSmallIntegerField(default=0)
    moved = models.PositiveSmallIntegerField(default=0)
    confirmed = models.PositiveSmallIntegerField(default=0)
    recurred = models.PositiveSmallIntegerField(default=0)
    refused = models.PositiveSmallIntegerField(default=0)
    skipped = models.PositiveSmallIntegerField(default=0)
    dropped = models.PositiveSmallIntegerField(default=0)
    restored = models.PositiveSmallIntegerField(default=0)
    # Of deliveries; the release before counts none.
    due = models.PositiveSmallIntegerField(default=0, db_default=0)
    given_up = models.PositiveSmallIntegerField(default=0, db_default=0)

    objects = WindowQuerySet.as_manager()

    class Meta:
        db_table = "poison_window"
        constraints = [
            models.CheckConstraint(
                name="poison_window_state_is_known",
                condition=Q(state__in=[state.value for state in WindowState]),
            ),
            models.CheckConstraint(
                name="poison_window_counts_an_item_once",
                condition=Q(items__gte=_COUNTED),
            ),
        ]
        indexes = [
            # What a run claims next, and what a dead one left: no finished window.
            models.Index(
                fields=["operation", "first"],
                name="poison_window_unfinished",
                condition=~Q(state="done"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operation}/{self.first} {self.state}"


class Hold(models.Model):
    """A poison that an unfinished operation may still send: no other may take it.

    `n` is the number of the redrive that will be sent: a run that takes over from a
    dead one sends the item again under the same redrive id, which is packed from
    `operation`, `item` and `n`. `redrive` is an id that an earlier release had drawn.
    """

    # Without a constraint, as in `Redrive`: who inserts it has locked the poison.
    poison = models.OneToOneField(
        Poison,
        primary_key=True,
        on_delete=models.PROTECT,
        related_name="hold",
        db_constraint=False,
    )
    operation = models.BigIntegerField()
    item = models.PositiveIntegerField(
        null=True, help_text="its number; null while a release before holds it"
    )
    n = models.PositiveIntegerField()
    # Not a foreign key: the poison or the operation protects the topic. To be looked up
    # when a topic is removed, it would need an index, which each message would pay for.
    topic_id = models.BigIntegerField(help_text="where it will be sent")
    queue = models.TextField(
        default="", db_default="", help_text="the dead-letter queue to give it back to"
    )
    redrive = models.UUIDField(null=True)

    class Meta:
        db_table = "poison_hold"
        constraints = [
            models.UniqueConstraint(
                fields=["operation", "item"], name="poison_hold_item_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.poison_id} by {self.operation}/{self.item}"
