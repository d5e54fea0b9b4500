from __future__ import annotations

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import apps.core.postgres_transaction_fields


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("brokers", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Problem",
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
                ("consumer_group", models.TextField()),
                ("fingerprint", models.BinaryField()),
                (
                    "version",
                    models.PositiveSmallIntegerField(help_text="of the classifier"),
                ),
                ("title", models.TextField()),
                ("summary", models.TextField()),
                (
                    "inputs",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(), size=None
                    ),
                ),
                ("first_seen", models.DateTimeField()),
                ("last_seen", models.DateTimeField()),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        db_index=False,
                        related_name="problems",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "poison_problem",
                "indexes": [
                    models.Index(
                        fields=["-last_seen", "-id"], name="poison_problem_recent"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topic", "consumer_group", "fingerprint", "version"),
                        name="poison_problem_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("first_seen__lte", models.F("last_seen"))),
                        name="poison_problem_is_seen_in_order",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Poison",
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
                ("identity", models.BinaryField()),
                ("reuse", models.SmallIntegerField(default=0)),
                ("consumer_group", models.TextField()),
                ("bookmark", models.BinaryField()),
                ("message_id", models.TextField(null=True)),
                ("state", models.CharField(default="open", max_length=10)),
                ("cause", models.CharField(max_length=20)),
                ("error_type", models.TextField()),
                ("error_message", models.TextField(help_text="one line, for lists")),
                ("size", models.BigIntegerField(help_text="bytes of the body")),
                ("digest", models.BinaryField(help_text="SHA-256 of the body")),
                ("failures", models.PositiveIntegerField(default=0)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("crashes", models.PositiveIntegerField(default=0)),
                ("redrives", models.PositiveIntegerField(default=0)),
                ("recurrences", models.PositiveIntegerField(default=0)),
                ("first_failed_at", models.DateTimeField()),
                ("last_failed_at", models.DateTimeField()),
                ("captured_at", models.DateTimeField()),
                (
                    "captured_xid",
                    apps.core.postgres_transaction_fields.TransactionIdField(
                        db_default=apps.core.postgres_transaction_fields.CurrentTransaction()
                    ),
                ),
                ("sent_at", models.DateTimeField(null=True)),
                ("dropped_at", models.DateTimeField(null=True)),
                (
                    "moved_to",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        db_index=False,
                        related_name="+",
                        to="brokers.topic",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        db_index=False,
                        related_name="poisons",
                        to="brokers.topic",
                    ),
                ),
                (
                    "problem",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        db_index=False,
                        related_name="poisons",
                        to="poison.problem",
                    ),
                ),
            ],
            options={
                "db_table": "poison_poison",
                "indexes": [
                    models.Index(
                        fields=["-last_failed_at", "-id"], name="poison_recent"
                    ),
                    models.Index(
                        fields=["state", "-last_failed_at", "-id"],
                        name="poison_by_state",
                    ),
                    models.Index(
                        fields=["topic", "-last_failed_at", "-id"],
                        name="poison_by_topic",
                    ),
                    models.Index(
                        fields=["problem", "state", "-last_failed_at", "-id"],
                        name="poison_by_problem",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("identity", "reuse"), name="poison_identity_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "open",
                                    "redriving",
                                    "redriven",
                                    "confirmed",
                                    "moved",
                                    "dropped",
                                ],
                            )
                        ),
                        name="poison_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("dropped_at__isnull", False), ("state", "dropped")
                            ),
                            models.Q(
                                models.Q(("state", "dropped"), _negated=True),
                                ("dropped_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="poison_dropped_has_dropped_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("moved_to__isnull", False), ("state", "moved")),
                            models.Q(
                                models.Q(("state", "moved"), _negated=True),
                                ("moved_to", None),
                            ),
                            _connector="OR",
                        ),
                        name="poison_moved_has_moved_to",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state__in", ["redriven", "moved", "confirmed"]),
                                _negated=True,
                            ),
                            ("sent_at__isnull", False),
                            _connector="OR",
                        ),
                        name="poison_redriven_has_sent_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["open", "dropped"]),
                            ("redrives__gte", 1),
                            _connector="OR",
                        ),
                        name="poison_sent_was_redriven",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("recurrences__lte", models.F("redrives"))),
                        name="poison_recurs_once_a_redrive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("first_failed_at__lte", models.F("last_failed_at"))
                        ),
                        name="poison_failed_in_order",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Alias",
            fields=[
                ("identity", models.BinaryField(primary_key=True, serialize=False)),
                ("bookmark", models.BinaryField()),
                (
                    "poison",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="aliases",
                        to="poison.poison",
                    ),
                ),
            ],
            options={
                "db_table": "poison_alias",
            },
        ),
        migrations.CreateModel(
            name="Redrive",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("n", models.PositiveIntegerField()),
                ("outcome", models.CharField(default="sending", max_length=10)),
                ("detail", models.TextField(default="")),
                (
                    "bookmark",
                    models.TextField(default="", help_text="where the broker put it"),
                ),
                (
                    "epoch",
                    models.PositiveIntegerField(
                        help_text="of the run that last sent it"
                    ),
                ),
                ("copies", models.PositiveIntegerField(default=1)),
                ("claimed_at", models.DateTimeField()),
                ("sent_at", models.DateTimeField(null=True)),
                ("answered_at", models.DateTimeField(null=True)),
                (
                    "poison",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        db_index=False,
                        related_name="redrives_made",
                        to="poison.poison",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        db_index=False,
                        related_name="+",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "poison_redrive",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("poison", "n"), name="poison_redrive_n_once"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("outcome__in", ("sending", "unknown"))),
                        fields=("poison",),
                        name="poison_redrive_one_in_flight",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "outcome__in",
                                [
                                    "sending",
                                    "unknown",
                                    "sent",
                                    "moved",
                                    "confirmed",
                                    "recurred",
                                    "refused",
                                ],
                            )
                        ),
                        name="poison_redrive_outcome_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("outcome__in", ["sending", "unknown", "refused"]),
                                ("sent_at", None),
                            ),
                            models.Q(
                                models.Q(
                                    ("outcome__in", ["sending", "unknown", "refused"]),
                                    _negated=True,
                                ),
                                ("sent_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="poison_redrive_sent_has_sent_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("answered_at__isnull", False),
                                ("outcome__in", ["confirmed", "recurred"]),
                            ),
                            models.Q(
                                models.Q(
                                    ("outcome__in", ["confirmed", "recurred"]),
                                    _negated=True,
                                ),
                                ("answered_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="poison_redrive_answer_has_a_time",
                    ),
                ],
            },
        ),
    ]
