"""When an outbox's rows were counted, beside when its sweeper noted anything."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import AtOnce, LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("outbox", "0003_set_aside_rows"),
    ]

    operations = [
        AtOnce(
            [
                migrations.AddField(
                    model_name="outboxactivity",
                    name="counted_at",
                    field=models.DateTimeField(null=True),
                ),
            ]
        )
    ]
