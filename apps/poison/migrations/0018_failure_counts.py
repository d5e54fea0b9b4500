"""Counts of failures by problem, topic and ten minutes."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("poison", "0017_index_of_folded_failures")]

    operations = [
        migrations.CreateModel(
            name="FailureCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "problem_id",
                        "topic_id",
                        "begins_at",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("problem_id", models.BigIntegerField()),
                ("topic_id", models.BigIntegerField()),
                ("begins_at", models.DateTimeField(help_text="of the ten minutes")),
                ("number", models.BigIntegerField()),
            ],
            options={"db_table": "poison_failure_count"},
        ),
        migrations.CreateModel(
            name="FailureCountChange",
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
                ("problem_id", models.BigIntegerField()),
                ("begins_at", models.DateTimeField(help_text="of the ten minutes")),
                (
                    "number",
                    models.BigIntegerField(
                        help_text="negative where there are fewer now"
                    ),
                ),
            ],
            options={"db_table": "poison_failure_count_change"},
        ),
    ]
