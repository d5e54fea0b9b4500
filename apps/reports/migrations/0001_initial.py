"""Runs, the days they published, and the tables where a run stages its numbers.

The staged tables are unlogged and without keys: what is in them is copied into a
published day, or forgotten. Django knows nothing of them.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

import apps.core.postgres_transaction_fields

# Of two unfinished runs no day is the same. Dates overlap as ranges, which needs no
# extension.
NO_OVERLAP = """
ALTER TABLE reports_run ADD CONSTRAINT reports_run_one_at_a_time_for_a_day
EXCLUDE USING gist (daterange(first_day, last_day, '[]') WITH &&)
WHERE (state IN ('queued', 'running'))
"""

MEASURED = """
    delivered bigint, failed bigint NOT NULL, poisoned bigint NOT NULL,
    retried bigint NOT NULL, redriven bigint NOT NULL, confirmed bigint NOT NULL,
    recurred bigint NOT NULL, dropped bigint NOT NULL,
    failure_rate float8, rate_low float8, rate_high float8
"""

STAGED = f"""
CREATE UNLOGGED TABLE reports_staged_rate (
    run_id bigint NOT NULL, epoch integer NOT NULL,
    day date NOT NULL, hour smallint, topic text NOT NULL, consumer_group text,
    source text NOT NULL, uncounted bigint NOT NULL, skipped bigint NOT NULL,
    {MEASURED},
    p50_ms bigint, p95_ms bigint, p99_ms bigint
);
CREATE UNLOGGED TABLE reports_staged_problem (
    run_id bigint NOT NULL, epoch integer NOT NULL,
    day date NOT NULL, problem bigint NOT NULL,
    {MEASURED}
);
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("brokers", "0001_initial"),
        ("poison", "0005_redrives_by_time"),
    ]

    operations = [
        migrations.CreateModel(
            name="Run",
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
                ("first_day", models.DateField()),
                ("last_day", models.DateField()),
                ("state", models.CharField(default="queued", max_length=10)),
                ("asked_by", models.TextField()),
                ("asked_at", models.DateTimeField()),
                (
                    "epoch",
                    models.PositiveIntegerField(
                        default=0, help_text="one more for each start"
                    ),
                ),
                ("started_at", models.DateTimeField(null=True)),
                (
                    "snapshot",
                    apps.core.postgres_transaction_fields.SnapshotField(null=True),
                ),
                ("as_of", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("rows_in", models.BigIntegerField(default=0)),
                ("late_rows", models.BigIntegerField(default=0)),
                (
                    "trouble",
                    models.TextField(default="", help_text="why it failed, in a line"),
                ),
                (
                    "log",
                    models.TextField(
                        default="", help_text="the end of the job's log, if it did"
                    ),
                ),
            ],
            options={
                "db_table": "reports_run",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["queued", "running", "done", "failed"])
                        ),
                        name="reports_run_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("first_day__lte", models.F("last_day"))),
                        name="reports_run_window_is_in_order",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False),
                                ("state__in", ("done", "failed")),
                            ),
                            models.Q(
                                models.Q(
                                    ("state__in", ("done", "failed")), _negated=True
                                ),
                                ("finished_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="reports_run_finished_has_finished_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("state", "done"), _negated=True),
                            models.Q(
                                ("as_of__isnull", False), ("snapshot__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="reports_run_done_has_a_snapshot",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state", "failed"),
                                models.Q(("trouble", ""), _negated=True),
                            ),
                            models.Q(
                                models.Q(("state", "failed"), _negated=True),
                                ("trouble", ""),
                            ),
                            _connector="OR",
                        ),
                        name="reports_run_failed_says_why",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Day",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("rows_in", models.BigIntegerField()),
                ("late_rows", models.BigIntegerField()),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="published",
                        to="reports.run",
                    ),
                ),
            ],
            options={
                "db_table": "reports_day",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("late_rows__gte", 0), ("rows_in__gte", 0)),
                        name="reports_day_is_not_negative",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ProblemDay",
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
                ("delivered", models.BigIntegerField(null=True)),
                ("failed", models.BigIntegerField()),
                (
                    "poisoned",
                    models.BigIntegerField(
                        help_text="messages that failed so at first"
                    ),
                ),
                ("retried", models.BigIntegerField()),
                ("redriven", models.BigIntegerField()),
                ("confirmed", models.BigIntegerField()),
                ("recurred", models.BigIntegerField()),
                ("dropped", models.BigIntegerField()),
                ("failure_rate", models.FloatField(null=True)),
                ("rate_low", models.FloatField(null=True)),
                ("rate_high", models.FloatField(null=True)),
                (
                    "day",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="problems",
                        to="reports.day",
                    ),
                ),
                (
                    "problem",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="poison.problem",
                    ),
                ),
            ],
            options={
                "db_table": "reports_problem_day",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("day", "problem"), name="reports_problem_day_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("confirmed__gte", 0),
                            ("delivered__gte", 0),
                            ("dropped__gte", 0),
                            ("failed__gte", 0),
                            ("poisoned__gte", 0),
                            ("recurred__gte", 0),
                            ("redriven__gte", 0),
                            ("retried__gte", 0),
                        ),
                        name="reports_problem_day_is_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("failure_rate", None),
                                ("rate_high", None),
                                ("rate_low", None),
                            ),
                            models.Q(
                                ("delivered__gt", 0),
                                ("rate_high__gte", models.F("failure_rate")),
                                ("rate_high__lte", 1),
                                ("rate_low__gte", 0),
                                ("rate_low__lte", models.F("failure_rate")),
                            ),
                            _connector="OR",
                        ),
                        name="reports_problem_day_is_a_part",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Rate",
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
                ("delivered", models.BigIntegerField(null=True)),
                ("failed", models.BigIntegerField()),
                (
                    "poisoned",
                    models.BigIntegerField(
                        help_text="messages that failed so at first"
                    ),
                ),
                ("retried", models.BigIntegerField()),
                ("redriven", models.BigIntegerField()),
                ("confirmed", models.BigIntegerField()),
                ("recurred", models.BigIntegerField()),
                ("dropped", models.BigIntegerField()),
                ("failure_rate", models.FloatField(null=True)),
                ("rate_low", models.FloatField(null=True)),
                ("rate_high", models.FloatField(null=True)),
                ("hour", models.PositiveSmallIntegerField(null=True)),
                ("consumer_group", models.TextField(null=True)),
                ("source", models.CharField(max_length=10)),
                ("uncounted", models.BigIntegerField()),
                ("skipped", models.BigIntegerField()),
                ("p50_ms", models.BigIntegerField(null=True)),
                ("p95_ms", models.BigIntegerField(null=True)),
                ("p99_ms", models.BigIntegerField(null=True)),
                (
                    "day",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rates",
                        to="reports.day",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "reports_rate",
                "indexes": [
                    models.Index(fields=["day", "hour"], name="reports_rate_by_day")
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "day", "hour", "consumer_group"),
                        name="reports_rate_once",
                        nulls_distinct=False,
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("source__in", ["sdk", "broker", "none"])),
                        name="reports_rate_source_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("hour", None), ("hour__lte", 23), _connector="OR"
                        ),
                        name="reports_rate_hour_is_of_a_day",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("confirmed__gte", 0),
                            ("delivered__gte", 0),
                            ("dropped__gte", 0),
                            ("failed__gte", 0),
                            ("poisoned__gte", 0),
                            ("recurred__gte", 0),
                            ("redriven__gte", 0),
                            ("retried__gte", 0),
                            ("skipped__gte", 0),
                            ("uncounted__gte", 0),
                            ("uncounted__lte", models.F("failed")),
                        ),
                        name="reports_rate_is_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("failure_rate", None),
                                ("rate_high", None),
                                ("rate_low", None),
                            ),
                            models.Q(
                                ("delivered__gt", 0),
                                ("rate_high__gte", models.F("failure_rate")),
                                ("rate_high__lte", 1),
                                ("rate_low__gte", 0),
                                ("rate_low__lte", models.F("failure_rate")),
                            ),
                            _connector="OR",
                        ),
                        name="reports_rate_is_a_part",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("source", "none"), _negated=True),
                            ("delivered", None),
                            _connector="OR",
                        ),
                        name="reports_rate_without_a_source_is_null",
                    ),
                ],
            },
        ),
        migrations.RunSQL(
            NO_OVERLAP,
            "ALTER TABLE reports_run DROP CONSTRAINT"
            " reports_run_one_at_a_time_for_a_day",
        ),
        migrations.RunSQL(
            STAGED, "DROP TABLE reports_staged_rate, reports_staged_problem"
        ),
    ]
