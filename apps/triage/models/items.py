"""The items of an operation: written once, when its selection is taken.

What becomes of an item stands elsewhere: why it was skipped in `SkippedItem`, that it
waits to be sent in `poison.Hold`, how it was sent and answered in `poison.Redrive`.
`poison.ItemWindow` counts them.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.poison.models import Poison
from apps.triage.models.operations import Operation
from apps.triage.operation_querysets import ItemQuerySet


class Item(models.Model):
    """A poison of an operation, by its number from 0 in the order of the operation."""

    pk = models.CompositePrimaryKey("operation", "number")
    # Each constraint would be checked, and the poison locked for it, item by item.
    operation = models.ForeignKey(
        Operation,
        on_delete=models.CASCADE,
        related_name="items",
        db_index=False,
        db_constraint=False,
    )
    number = models.PositiveIntegerField()
    poison = models.ForeignKey(
        Poison, on_delete=models.PROTECT, related_name="items", db_constraint=False
    )

    objects = ItemQuerySet.as_manager()

    class Meta:
        db_table = "triage_selected_item"

    def __str__(self) -> str:
        return f"{self.operation_id}/{self.number}: {self.poison_id}"


class SkippedItem(models.Model):
    """An item on which its operation does not act, and why."""

    pk = models.CompositePrimaryKey("operation", "number")
    operation = models.ForeignKey(
        Operation, on_delete=models.CASCADE, related_name="skipped", db_index=False
    )
    number = models.PositiveIntegerField()
    reason = models.TextField()

    class Meta:
        db_table = "triage_skipped_item"
        constraints = [
            models.CheckConstraint(
                name="triage_skipped_item_has_a_reason", condition=~Q(reason="")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.operation_id}/{self.number}: {self.reason}"
