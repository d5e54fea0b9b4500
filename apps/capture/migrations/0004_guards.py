"""How the guards of consumers are."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("capture", "0003_who_counted_and_when"),
        ("brokers", "0003_topics_that_replay"),
    ]

    operations = [
        migrations.CreateModel(
            name="Guard",
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
                ("reporter", models.UUIDField()),
                ("consumer_group", models.TextField()),
                ("client_name", models.TextField()),
                ("host", models.TextField(null=True)),
                ("version", models.TextField(null=True)),
                ("handler_version", models.TextField(null=True)),
                ("state", models.CharField(max_length=10)),
                ("detail", models.TextField(help_text="why it is in this state")),
                (
                    "skips_age",
                    models.FloatField(
                        help_text="seconds; null: no list yet", null=True
                    ),
                ),
                (
                    "spooled",
                    models.BigIntegerField(help_text="reports that wait on its disk"),
                ),
                (
                    "suspected",
                    models.BigIntegerField(help_text="messages that it withholds"),
                ),
                (
                    "journal",
                    models.BooleanField(help_text="it can tell a crash from a stop"),
                ),
                ("at", models.DateTimeField()),
                ("since", models.DateTimeField()),
                ("heard_at", models.DateTimeField(db_index=True)),
                (
                    "topic",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guards",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "capture_guard",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "client_name", "reporter"),
                        name="capture_guard_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["running", "paused", "holding", "stopping"])
                        ),
                        name="capture_guard_state_is_known",
                    ),
                ],
            },
        ),
    ]
