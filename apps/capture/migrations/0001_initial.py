from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("brokers", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="HeldDeadLetter",
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
                ("bookmark", models.TextField()),
                ("reason", models.TextField()),
                ("size", models.BigIntegerField()),
                ("seen_at", models.DateTimeField()),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="held",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "capture_held_dead_letter",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "bookmark"), name="capture_held_once"
                    )
                ],
            },
        ),
    ]
