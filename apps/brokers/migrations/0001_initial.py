from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Broker",
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
                ("kind", models.CharField(max_length=40)),
                ("url", models.TextField()),
                ("options", models.JSONField(default=dict)),
            ],
            options={
                "db_table": "brokers_broker",
            },
        ),
        migrations.CreateModel(
            name="Topic",
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
                ("name", models.TextField(unique=True)),
                ("native_name", models.TextField()),
                ("dead_letter_queue", models.TextField(default="")),
                ("max_dequeue_count", models.PositiveIntegerField(default=5)),
                (
                    "visibility_timeout",
                    models.FloatField(default=60.0, help_text="seconds"),
                ),
                ("lane_state", models.CharField(default="off", max_length=10)),
                ("lane_detail", models.TextField(default="")),
                ("lane_seen_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="topics",
                        to="brokers.broker",
                    ),
                ),
            ],
            options={
                "db_table": "brokers_topic",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("broker", "native_name"),
                        name="brokers_topic_native_name_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("max_dequeue_count__gte", 1)),
                        name="brokers_topic_max_dequeue_count_is_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("visibility_timeout__gt", 0)),
                        name="brokers_topic_visibility_timeout_is_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("broker__isnull", False),
                            ("dead_letter_queue", ""),
                            _connector="OR",
                        ),
                        name="brokers_topic_is_drained_only_with_a_broker",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("lane_state__in", ["off", "running", "away"])
                        ),
                        name="brokers_topic_lane_state_is_known",
                    ),
                ],
            },
        ),
    ]
