"""Deliveries as the items of operations, which are carried out by an app below.

No constraint refers to a delivery: old ones are deleted, and operations stay.
"""

from __future__ import annotations

from django.db import models

from apps.redelivery.models.deliveries import Delivery
from apps.triage.models import Operation


class DeliveryItem(models.Model):
    """A delivery of an operation, by its number from 0 in the order of acceptance."""

    pk = models.CompositePrimaryKey("operation", "number")
    operation = models.ForeignKey(
        Operation,
        on_delete=models.CASCADE,
        related_name="delivery_items",
        db_index=False,
        db_constraint=False,
    )
    number = models.PositiveIntegerField()
    delivery = models.ForeignKey(
        Delivery,
        on_delete=models.DO_NOTHING,
        related_name="operation_items",
        db_constraint=False,
    )

    class Meta:
        db_table = "redelivery_selected_item"

    def __str__(self) -> str:
        return f"{self.operation_id}/{self.number}: {self.delivery_id}"


class DeliveryHold(models.Model):
    """A delivery on which an unfinished operation may still act: no other may take it.

    A sender may: what becomes of it then is why the operation skips it.
    """

    delivery = models.OneToOneField(
        Delivery,
        primary_key=True,
        on_delete=models.DO_NOTHING,
        related_name="hold",
        db_constraint=False,
    )
    operation = models.BigIntegerField()
    item = models.PositiveIntegerField(help_text="its number")

    class Meta:
        db_table = "redelivery_hold"
        constraints = [
            models.UniqueConstraint(
                fields=["operation", "item"], name="redelivery_hold_item_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.delivery_id} by {self.operation}/{self.item}"
