"""Store where an operation's ramp and its speed begin again, as when it is resumed."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("triage", "0011_acknowledgements")]

    operations = [
        *(
            migrations.AddField(
                model_name="operation",
                name=name,
                field=models.PositiveIntegerField(
                    default=0, db_default=0, help_text=help_text
                ),
            )
            for name, help_text in (
                (
                    "ramp_begins_after",
                    "messages handed over before its first step",
                ),
                (
                    "ramp_begins_at",
                    "number after the windows begun by then",
                ),
                (
                    "ramp_after_run",
                    "the last run before its first step",
                ),
                (
                    "pace_since_finished",
                    "items that it had finished then",
                ),
            )
        ),
        migrations.AddField(
            model_name="operation",
            name="pace_since",
            field=models.DateTimeField(
                null=True, help_text="when it last began to go on, or its rate changed"
            ),
        ),
        migrations.AlterField(
            model_name="operation",
            name="ramp_to",
            field=models.PositiveIntegerField(
                default=0,
                db_default=0,
                help_text="messages that its steps so far allow",
            ),
        ),
    ]
