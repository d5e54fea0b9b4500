"""How the calls and deliveries of endpoints ended, by day.

Days that were published before say that they do not count endpoints, and so do days
that the release before publishes beside this one.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q

from apps.core.schema_changes import AtOnce, LockTimeoutMigration

COUNTS = (
    *("calls", "succeeded_at_first"),
    *("after_1", "after_2", "after_3", "after_4_to_10", "after_more"),
    *("given_up", "dropped", "forwarded", "unknown", "waiting", "timed"),
)
HELP = {"given_up": "given to triage", "timed": "deliveries that succeeded"}
TIMES = ("p50_ms", "p95_ms", "longest_ms")

STAGED = f"""
CREATE UNLOGGED TABLE reports_staged_endpoint (
    run_id bigint NOT NULL, epoch integer NOT NULL,
    day date NOT NULL, topic text NOT NULL, endpoint text NOT NULL,
    {" ".join(f"{name} bigint NOT NULL," for name in COUNTS)}
    p50_ms bigint, p95_ms bigint, longest_ms bigint
);
"""


class Migration(LockTimeoutMigration):
    dependencies = [
        ("brokers", "0007_topics_requeued_elsewhere"),
        ("reports", "0001_initial"),
    ]

    operations = [
        migrations.RunSQL(STAGED, "DROP TABLE reports_staged_endpoint"),
        AtOnce(
            [
                migrations.AddField(
                    "day", "counts_endpoints", models.BooleanField(db_default=False)
                ),
                migrations.CreateModel(
                    name="EndpointDay",
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
                        ("endpoint", models.TextField()),
                        *[
                            (name, models.BigIntegerField(help_text=HELP.get(name, "")))
                            for name in COUNTS
                        ],
                        *[(name, models.BigIntegerField(null=True)) for name in TIMES],
                        (
                            "is_partial",
                            models.BooleanField(
                                help_text="deliveries of the day may have been deleted"
                                " before it was counted"
                            ),
                        ),
                        (
                            "day",
                            models.ForeignKey(
                                db_constraint=False,
                                db_index=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="endpoints",
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
                        "db_table": "reports_endpoint_day",
                        "indexes": [
                            models.Index(
                                fields=["day"], name="reports_endpoint_day_by_day"
                            )
                        ],
                        "constraints": [
                            models.UniqueConstraint(
                                fields=("topic", "day"),
                                name="reports_endpoint_day_once",
                            ),
                            models.CheckConstraint(
                                name="reports_endpoint_day_is_not_negative",
                                condition=Q(
                                    **{
                                        f"{name}__gte": 0
                                        for name in COUNTS
                                        if name != "timed"
                                    }
                                ),
                            ),
                            models.CheckConstraint(
                                name="reports_endpoint_day_has_parts",
                                condition=Q(
                                    succeeded_at_first__lte=F("calls"),
                                    unknown__lte=F("given_up")
                                    + F("dropped")
                                    + F("forwarded"),
                                    timed__gte=F("after_1")
                                    + F("after_2")
                                    + F("after_3")
                                    + F("after_4_to_10")
                                    + F("after_more"),
                                ),
                            ),
                            models.CheckConstraint(
                                name="reports_endpoint_day_has_times",
                                condition=Q(
                                    timed=0, p50_ms=None, p95_ms=None, longest_ms=None
                                )
                                | Q(
                                    timed__gt=0,
                                    p50_ms__gte=0,
                                    p95_ms__gte=F("p50_ms"),
                                    longest_ms__gte=F("p95_ms"),
                                ),
                            ),
                        ],
                    },
                ),
            ]
        ),
    ]
