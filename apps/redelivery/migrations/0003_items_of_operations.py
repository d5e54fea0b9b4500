"""Deliveries may be the items of operations, and are on hold for one at a time.

On the way back they go; the operations go with the migration of their own app.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("redelivery", "0002_senders"),
        ("triage", "0010_operations_of_other_kinds"),
    ]

    operations = [
        migrations.CreateModel(
            name="DeliveryItem",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "operation",
                        "number",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                (
                    "delivery",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="operation_items",
                        to="redelivery.delivery",
                    ),
                ),
                (
                    "operation",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="delivery_items",
                        to="triage.operation",
                    ),
                ),
            ],
            options={"db_table": "redelivery_selected_item"},
        ),
        migrations.CreateModel(
            name="DeliveryHold",
            fields=[
                (
                    "delivery",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="hold",
                        serialize=False,
                        to="redelivery.delivery",
                    ),
                ),
                ("operation", models.BigIntegerField()),
                ("item", models.PositiveIntegerField(help_text="its number")),
            ],
            options={
                "db_table": "redelivery_hold",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("operation", "item"), name="redelivery_hold_item_once"
                    )
                ],
            },
        ),
    ]
