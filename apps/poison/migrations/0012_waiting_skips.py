"""Failures that found no room on their list wait for it."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("brokers", "0006_allow_lists"),
        ("poison", "0011_suspected_skips"),
    ]

    operations = [
        migrations.CreateModel(
            name="WaitingSkip",
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
                ("consumer_group", models.TextField()),
                ("handler_version", models.TextField(null=True)),
                ("bookmark", models.BinaryField()),
                ("publisher", models.TextField(null=True)),
                ("seq", models.BigIntegerField(null=True)),
                ("redrive", models.UUIDField(null=True)),
                ("reason", models.TextField()),
                (
                    "is_killer",
                    models.BooleanField(help_text="its consumers die of it, or hang"),
                ),
                ("is_suspected", models.BooleanField(default=False)),
                ("at", models.DateTimeField()),
                (
                    "poison",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="poison.poison",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "poison_waiting_skip",
                "indexes": [
                    models.Index(
                        fields=["topic", "-is_killer", "id"],
                        name="poison_waiting_skip_next",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("poison", "handler_version", "redrive"),
                        name="poison_waiting_skip_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
    ]
