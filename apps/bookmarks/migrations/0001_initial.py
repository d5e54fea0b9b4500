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
            name="BookmarkPosition",
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
                ("source", models.CharField(default="broker", max_length=10)),
                ("consumer_group", models.TextField(default="")),
                ("client_name", models.TextField(default="")),
                ("sub_id", models.TextField(default="")),
                ("clients", models.PositiveIntegerField(default=0)),
                ("observed_at", models.DateTimeField()),
                ("moved_at", models.DateTimeField()),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="positions",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "bookmarks_position",
                "constraints": [
                    models.UniqueConstraint(
                        fields=(
                            "topic",
                            "source",
                            "consumer_group",
                            "client_name",
                            "sub_id",
                        ),
                        name="bookmarks_position_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("source", "broker")),
                        name="bookmarks_position_source_is_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Mark",
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
                ("publisher", models.TextField(default="")),
                ("processed", models.BigIntegerField()),
                ("bookmark", models.TextField()),
                ("head", models.BigIntegerField()),
                ("head_bookmark", models.TextField()),
                ("lag", models.BigIntegerField(null=True)),
                ("pending", models.BigIntegerField()),
                ("oldest_pending_seconds", models.FloatField(null=True)),
                (
                    "position",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="marks",
                        to="bookmarks.bookmarkposition",
                    ),
                ),
            ],
            options={
                "db_table": "bookmarks_mark",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("position", "publisher"), name="bookmarks_mark_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("head__gte", 0), ("pending__gte", 0), ("processed__gte", 0)
                        ),
                        name="bookmarks_mark_is_not_negative",
                    ),
                ],
            },
        ),
    ]
