"""Outboxes, what their sweepers note, and the errors of these."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("brokers", "0007_topics_requeued_elsewhere"),
    ]

    operations = [
        migrations.CreateModel(
            name="Outbox",
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
                ("name", models.CharField(max_length=100, unique=True)),
                ("url", models.TextField()),
                ("schema", models.CharField(default="", max_length=63)),
                (
                    "window",
                    models.PositiveIntegerField(
                        help_text="messages sent at once, at most"
                    ),
                ),
                (
                    "most_lag",
                    models.PositiveBigIntegerField(
                        help_text="null: no limit", null=True
                    ),
                ),
                (
                    "sent_rows_days",
                    models.PositiveIntegerField(
                        help_text="how long rows that were sent stay"
                    ),
                ),
                (
                    "sent_ids_days",
                    models.PositiveIntegerField(
                        help_text="how long a message id that was sent is recognised"
                    ),
                ),
                ("is_paused", models.BooleanField(default=False)),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1, help_text="counts its changes"
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("created_by", models.TextField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="outboxes",
                        to="brokers.broker",
                    ),
                ),
                (
                    "topic",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="outbox",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "outbox_outbox",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("window__gte", 1), ("window__lte", 10000)),
                        name="outbox_outbox_window_is_bounded",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("sent_ids_days__gte", models.F("sent_rows_days")),
                            ("sent_rows_days__gte", 1),
                        ),
                        name="outbox_outbox_ids_stay_longer_than_rows",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxError",
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
                ("step", models.CharField(max_length=40)),
                ("kind", models.CharField(max_length=200)),
                ("count", models.BigIntegerField(default=0)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("message", models.TextField(help_text="of the last one")),
                ("first_stack", models.TextField()),
                (
                    "outbox",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="errors",
                        to="outbox.outbox",
                    ),
                ),
            ],
            options={
                "db_table": "outbox_error",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("outbox", "step", "kind"), name="outbox_error_kind_once"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxActivity",
            fields=[
                (
                    "outbox",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="activity",
                        serialize=False,
                        to="outbox.outbox",
                    ),
                ),
                ("state", models.CharField(default="waiting", max_length=20)),
                (
                    "detail",
                    models.TextField(default="", help_text="why it is in this state"),
                ),
                ("noted_at", models.DateTimeField(null=True)),
                ("waiting", models.BigIntegerField(default=0)),
                ("waiting_bytes", models.BigIntegerField(default=0)),
                ("oldest_at", models.DateTimeField(null=True)),
                ("quarantined", models.BigIntegerField(default=0)),
                ("sent_count", models.BigIntegerField(default=0)),
                ("duplicate_count", models.BigIntegerField(default=0)),
                ("sent_per_second", models.FloatField(default=0.0)),
                (
                    "slowed",
                    models.JSONField(
                        default=dict,
                        help_text="topics that are slowed, each with its reason",
                    ),
                ),
            ],
            options={
                "db_table": "outbox_activity",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "sweeping",
                                    "waiting",
                                    "slowed",
                                    "unreachable",
                                    "broken",
                                    "paused",
                                ],
                            )
                        ),
                        name="outbox_activity_state_is_known",
                    )
                ],
            },
        ),
    ]
