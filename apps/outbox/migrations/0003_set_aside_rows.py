"""Rows that were quarantined, their messages, and the writer of many of them.

On the way back what was decided about messages, and is not done at the rows yet, is
lost: these rows stay quarantined.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

from apps.core.schema_changes import AtOnce, LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("outbox", "0002_limit_by_depth"),
        ("poison", "0021_windows_count_deliveries"),
    ]

    operations = [
        AtOnce(
            [
                migrations.AddField(
                    model_name="outboxactivity",
                    name="flood_rows",
                    field=models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="rows of one writer that were quarantined within ten"
                        " minutes",
                    ),
                ),
                migrations.AddField(
                    model_name="outboxactivity",
                    name="flood_writer",
                    field=models.TextField(
                        db_default="", default="", help_text="who it is"
                    ),
                ),
                migrations.CreateModel(
                    name="QuarantineRecord",
                    fields=[
                        (
                            "id",
                            models.BigAutoField(
                                auto_created=True,
                                primary_key=True,
                                serialize=False,
                                verbose_name="ID",
                            ),
                        ),
                        ("row_id", models.BigIntegerField()),
                        ("message_id", models.TextField(default="")),
                        ("redrives", models.PositiveIntegerField(default=0)),
                        (
                            "state",
                            models.CharField(default="quarantined", max_length=20),
                        ),
                        ("is_settled", models.BooleanField(default=True)),
                        ("quarantined_at", models.DateTimeField()),
                        (
                            "noted_at",
                            models.DateTimeField(
                                help_text="when it was captured or decided"
                            ),
                        ),
                        ("writer_user", models.TextField(default="")),
                        ("writer_application", models.TextField(default="")),
                        ("writer_address", models.TextField(default="")),
                        (
                            "outbox",
                            models.ForeignKey(
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="quarantined",
                                to="outbox.outbox",
                            ),
                        ),
                        (
                            "poison",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="+",
                                to="poison.poison",
                            ),
                        ),
                    ],
                    options={
                        "db_table": "outbox_set_aside_row",
                        "indexes": [
                            models.Index(
                                fields=["outbox", "noted_at"],
                                name="outbox_set_aside_by_time",
                            )
                        ],
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("outbox", "row_id"),
                                name="outbox_set_aside_row_once",
                            ),
                            models.CheckConstraint(
                                name="outbox_set_aside_row_state_is_known",
                                condition=Q(
                                    state__in=[
                                        "quarantined",
                                        "dropped",
                                        "released",
                                        "sent",
                                    ]
                                ),
                            ),
                        ],
                    },
                ),
            ]
        )
    ]
