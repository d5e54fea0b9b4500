"""Counts of poisons by problem, topic and state."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("poison", "0013_holds_and_windows")]

    operations = [
        migrations.CreateModel(
            name="PoisonCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "problem_id",
                        "topic_id",
                        "state",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("problem_id", models.BigIntegerField()),
                ("topic_id", models.BigIntegerField()),
                ("state", models.CharField(max_length=10)),
                ("number", models.BigIntegerField()),
            ],
            options={"db_table": "poison_count"},
        ),
        migrations.CreateModel(
            name="PoisonCountChange",
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
                ("topic_id", models.BigIntegerField()),
                ("state", models.CharField(max_length=10)),
                (
                    "number",
                    models.BigIntegerField(
                        help_text="negative where there are fewer now"
                    ),
                ),
            ],
            options={"db_table": "poison_count_change"},
        ),
        migrations.CreateModel(
            name="PoisonCountCheck",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, primary_key=True, serialize=False
                    ),
                ),
                ("checked_at", models.DateTimeField()),
                (
                    "wrong",
                    models.PositiveIntegerField(
                        help_text="counts that had to be mended"
                    ),
                ),
                (
                    "detail",
                    models.TextField(default="", help_text="the worst of them"),
                ),
            ],
            options={"db_table": "poison_count_check"},
        ),
        migrations.AddIndex(
            model_name="poisoncount",
            index=models.Index(
                fields=["topic_id", "state"], name="poison_count_by_topic"
            ),
        ),
        migrations.AddConstraint(
            model_name="poisoncountcheck",
            constraint=models.CheckConstraint(
                condition=models.Q(("id", 1)), name="poison_count_check_is_one_row"
            ),
        ),
    ]
