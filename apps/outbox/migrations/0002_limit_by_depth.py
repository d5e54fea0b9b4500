"""A limit of an outbox: how many messages its broker may have of a topic."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import AtOnce, LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("outbox", "0001_initial"),
    ]

    operations = [
        AtOnce(
            [
                migrations.AddField(
                    model_name="outbox",
                    name="most_depth",
                    field=models.PositiveBigIntegerField(
                        help_text="null: no limit", null=True
                    ),
                ),
            ]
        )
    ]
