"""Holds and windows say what an operation may still send, and count what it did."""

from __future__ import annotations

import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models

from apps.core.schema_changes import AtOnce, LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("brokers", "0006_allow_lists"),
        ("poison", "0012_waiting_skips"),
    ]

    operations = [
        migrations.CreateModel(
            name="Hold",
            fields=[
                (
                    "poison",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="hold",
                        serialize=False,
                        to="poison.poison",
                    ),
                ),
                ("operation", models.BigIntegerField()),
                (
                    "item",
                    models.PositiveIntegerField(
                        help_text="its number; null while a release before holds it",
                        null=True,
                    ),
                ),
                ("n", models.PositiveIntegerField()),
                (
                    "topic_id",
                    models.BigIntegerField(help_text="where it will be sent"),
                ),
                (
                    "queue",
                    models.TextField(
                        db_default="",
                        default="",
                        help_text="the dead-letter queue to give it back to",
                    ),
                ),
                ("redrive", models.UUIDField(null=True)),
            ],
            options={
                "db_table": "poison_hold",
            },
        ),
        migrations.CreateModel(
            name="ItemWindow",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "operation",
                        "first",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("operation", models.BigIntegerField()),
                ("first", models.PositiveIntegerField()),
                ("items", models.PositiveSmallIntegerField()),
                ("state", models.CharField(default="waiting", max_length=10)),
                ("run", models.PositiveIntegerField(default=0)),
                ("sending_to", models.PositiveIntegerField(default=0)),
                ("marked_at", models.DateTimeField(null=True)),
                ("sending", models.PositiveSmallIntegerField(default=0)),
                ("unknown", models.PositiveSmallIntegerField(default=0)),
                ("sent", models.PositiveSmallIntegerField(default=0)),
                ("moved", models.PositiveSmallIntegerField(default=0)),
                ("confirmed", models.PositiveSmallIntegerField(default=0)),
                ("recurred", models.PositiveSmallIntegerField(default=0)),
                ("refused", models.PositiveSmallIntegerField(default=0)),
                ("skipped", models.PositiveSmallIntegerField(default=0)),
                ("dropped", models.PositiveSmallIntegerField(default=0)),
                ("restored", models.PositiveSmallIntegerField(default=0)),
            ],
            options={
                "db_table": "poison_window",
            },
        ),
        migrations.AddIndex(
            model_name="itemwindow",
            index=models.Index(
                condition=models.Q(("state", "done"), _negated=True),
                fields=["operation", "first"],
                name="poison_window_unfinished",
            ),
        ),
        migrations.AddConstraint(
            model_name="itemwindow",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["waiting", "sending", "done"])),
                name="poison_window_state_is_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="itemwindow",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "items__gte",
                        django.db.models.expressions.CombinedExpression(
                            django.db.models.expressions.CombinedExpression(
                                django.db.models.expressions.CombinedExpression(
                                    django.db.models.expressions.CombinedExpression(
                                        django.db.models.expressions.CombinedExpression(
                                            django.db.models.expressions.CombinedExpression(
                                                django.db.models.expressions.CombinedExpression(
                                                    django.db.models.expressions.CombinedExpression(
                                                        django.db.models.expressions.CombinedExpression(
                                                            models.F("sending"),
                                                            "+",
                                                            models.F("sent"),
                                                        ),
                                                        "+",
                                                        models.F("confirmed"),
                                                    ),
                                                    "+",
                                                    models.F("recurred"),
                                                ),
                                                "+",
                                                models.F("refused"),
                                            ),
                                            "+",
                                            models.F("skipped"),
                                        ),
                                        "+",
                                        models.F("unknown"),
                                    ),
                                    "+",
                                    models.F("dropped"),
                                ),
                                "+",
                                models.F("restored"),
                            ),
                            "+",
                            models.F("moved"),
                        ),
                    )
                ),
                name="poison_window_counts_an_item_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="hold",
            constraint=models.UniqueConstraint(
                fields=("operation", "item"), name="poison_hold_item_once"
            ),
        ),
        # The last: it locks a large table.
        AtOnce(
            [
                migrations.RemoveConstraint(
                    model_name="redrive",
                    name="poison_redrive_one_in_flight",
                ),
                migrations.AddField(
                    model_name="redrive",
                    name="item",
                    field=models.PositiveIntegerField(
                        help_text="its number there", null=True
                    ),
                ),
                migrations.AddField(
                    model_name="redrive",
                    name="operation",
                    field=models.BigIntegerField(null=True),
                ),
                migrations.AlterField(
                    model_name="redrive",
                    name="claimed_at",
                    field=models.DateTimeField(help_text="before the first send"),
                ),
            ]
        ),
    ]
