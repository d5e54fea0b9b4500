"""Messages that are too large to be taken, and stay with their broker."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("brokers", "0006_allow_lists"),
        ("capture", "0009_contradicted_guards"),
    ]

    operations = [
        migrations.CreateModel(
            name="OversizeMessage",
            fields=[
                ("identity", models.BinaryField(primary_key=True, serialize=False)),
                ("consumer_group", models.TextField()),
                ("client_name", models.TextField(help_text="that told it last")),
                ("host", models.TextField(null=True)),
                ("bookmark", models.BinaryField()),
                ("message_id", models.TextField(null=True)),
                ("size", models.BigIntegerField(help_text="bytes of the body")),
                ("digest", models.BinaryField(help_text="SHA-256 of the body")),
                ("cause", models.CharField(max_length=20)),
                ("error", models.TextField()),
                ("first_seen_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField(db_index=True)),
                ("times", models.PositiveIntegerField(default=1)),
                (
                    "topic",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="oversize",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "capture_oversize_message",
                "indexes": [
                    models.Index(
                        fields=["topic", "-seen_at"], name="capture_oversize_by_topic"
                    )
                ],
            },
        ),
    ]
