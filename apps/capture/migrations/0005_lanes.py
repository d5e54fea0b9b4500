"""Lanes as rows with a mode; whatever was drained before is captured still."""

from __future__ import annotations

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

KEEP_CAPTURING = """
INSERT INTO capture_lane (topic_id, mode, tee_queue, paused, state, detail, captured,
                          rate, error, delivered_since)
SELECT id, 'capture', '', false, 'off', '', 0, 0, '', '' FROM brokers_topic
WHERE broker_id IS NOT NULL AND dead_letter_queue <> ''
"""


class Migration(migrations.Migration):
    dependencies = [
        ("brokers", "0004_topics_with_policies"),
        ("capture", "0004_guards"),
    ]

    operations = [
        migrations.CreateModel(
            name="Lane",
            fields=[
                (
                    "topic",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="lane",
                        serialize=False,
                        to="brokers.topic",
                    ),
                ),
                ("mode", models.CharField(default="observe", max_length=10)),
                (
                    "tee_queue",
                    models.TextField(default="", help_text="by the broker's own name"),
                ),
                ("paused", models.BooleanField(default=False)),
                ("state", models.CharField(default="off", max_length=10)),
                ("detail", models.TextField(default="")),
                ("seen_at", models.DateTimeField(null=True)),
                ("depth", models.BigIntegerField(null=True)),
                ("oldest_at", models.DateTimeField(null=True)),
                ("captured", models.BigIntegerField(default=0)),
                ("rate", models.FloatField(default=0.0)),
                (
                    "error",
                    models.TextField(
                        default="", help_text="the last one, also when it is over"
                    ),
                ),
                ("error_at", models.DateTimeField(null=True)),
                ("delivered_total", models.BigIntegerField(null=True)),
                ("delivered_since", models.TextField(default="")),
                ("delivered_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "capture_lane",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["observe", "capture", "tee"])),
                        name="capture_lane_mode_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["off", "running", "paused", "away"])
                        ),
                        name="capture_lane_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("mode", "tee"),
                                models.Q(("tee_queue", ""), _negated=True),
                            ),
                            models.Q(
                                models.Q(("mode", "tee"), _negated=True),
                                ("tee_queue", ""),
                            ),
                            _connector="OR",
                        ),
                        name="capture_lane_tees_to_a_queue",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Sample",
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
                (
                    "place",
                    models.PositiveSmallIntegerField(help_text="0 is the oldest"),
                ),
                ("bookmark", models.TextField()),
                ("start", models.BinaryField(help_text="of the body")),
                ("size", models.BigIntegerField()),
                (
                    "headers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BinaryField(),
                        help_text="names and values in turn",
                        size=None,
                    ),
                ),
                ("dequeue_count", models.BigIntegerField(null=True)),
                ("seen_at", models.DateTimeField()),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="samples",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "capture_sample",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "place"), name="capture_sample_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "report_id",
                    models.UUIDField(primary_key=True, serialize=False),
                ),
                ("digest", models.BinaryField()),
                ("captured_at", models.DateTimeField()),
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
                "db_table": "capture_delivery",
                "indexes": [
                    models.Index(
                        fields=["topic", "digest"], name="capture_delivery_by_digest"
                    )
                ],
            },
        ),
        migrations.RunSQL(KEEP_CAPTURING, migrations.RunSQL.noop),
    ]
