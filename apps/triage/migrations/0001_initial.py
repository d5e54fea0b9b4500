from __future__ import annotations

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

import apps.core.postgres_transaction_fields


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("brokers", "0001_initial"),
        ("poison", "0002_partitioned_by_day"),
    ]

    operations = [
        migrations.CreateModel(
            name="Operation",
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
                ("token", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("verb", models.CharField(max_length=10)),
                ("state", models.CharField(default="preview", max_length=10)),
                ("actor", models.TextField()),
                ("source", models.CharField(max_length=10)),
                (
                    "query",
                    models.TextField(
                        help_text="null when chosen one by one", null=True
                    ),
                ),
                (
                    "topics",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        help_text="what the actor may act on",
                        size=None,
                    ),
                ),
                (
                    "scope",
                    models.BinaryField(help_text="SHA-256 of what was asked for"),
                ),
                ("reason", models.TextField(default="")),
                (
                    "as_of",
                    apps.core.postgres_transaction_fields.SnapshotField(
                        db_default=apps.core.postgres_transaction_fields.CurrentSnapshot()
                    ),
                ),
                (
                    "taken",
                    models.BooleanField(
                        default=False, help_text="its items are all there"
                    ),
                ),
                ("total", models.PositiveIntegerField(default=0)),
                (
                    "epoch",
                    models.PositiveIntegerField(
                        default=0, help_text="one more for each run"
                    ),
                ),
                (
                    "trouble",
                    models.TextField(
                        default="", help_text="why it is waiting, in a line"
                    ),
                ),
                (
                    "troubles",
                    models.PositiveIntegerField(default=0, help_text="in a row"),
                ),
                ("retry_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "target_topic",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="brokers.topic",
                    ),
                ),
                (
                    "undo_of",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="undone_by",
                        to="triage.operation",
                    ),
                ),
            ],
            options={
                "db_table": "triage_operation",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state__in", ["queued", "running"])),
                        fields=["id"],
                        name="triage_operation_unfinished",
                    ),
                    models.Index(
                        fields=["state", "expires_at"], name="triage_operation_stale"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("verb__in", ["redrive", "drop", "restore"])
                        ),
                        name="triage_operation_verb_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                ["preview", "queued", "running", "done", "cancelled"],
                            )
                        ),
                        name="triage_operation_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("confirmed_at__isnull", False),
                                ("state__in", ("queued", "running", "done")),
                                ("taken", True),
                            ),
                            models.Q(
                                models.Q(
                                    ("state__in", ("queued", "running", "done")),
                                    _negated=True,
                                ),
                                ("confirmed_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="triage_operation_confirmed_has_confirmed_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False),
                                ("state__in", ("done", "cancelled")),
                            ),
                            models.Q(
                                models.Q(
                                    ("state__in", ("done", "cancelled")), _negated=True
                                ),
                                ("finished_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="triage_operation_finished_has_finished_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state__in", ("queued", "running", "done")),
                                ("verb", "drop"),
                                _negated=True,
                            ),
                            models.Q(("reason", ""), _negated=True),
                            _connector="OR",
                        ),
                        name="triage_operation_drop_has_a_reason",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("verb", "redrive"), ("target_topic", None), _connector="OR"
                        ),
                        name="triage_operation_only_a_redrive_has_a_target",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Item",
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
                ("state", models.CharField(default="waiting", max_length=10)),
                ("reason", models.TextField(default="", help_text="why it is skipped")),
                ("held", models.BooleanField(default=False)),
                (
                    "poison",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="items",
                        to="poison.poison",
                    ),
                ),
                (
                    "redrive",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="item",
                        to="poison.redrive",
                    ),
                ),
                (
                    "operation",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="triage.operation",
                    ),
                ),
            ],
            options={
                "db_table": "triage_item",
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "waiting")),
                        fields=["operation", "id"],
                        name="triage_item_waiting",
                    ),
                    models.Index(
                        fields=["operation", "state", "id"], name="triage_item_by_state"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("operation", "poison"), name="triage_item_once"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("held", True)),
                        fields=("poison",),
                        name="triage_item_one_open_operation_per_poison",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "waiting",
                                    "claimed",
                                    "skipped",
                                    "dropped",
                                    "restored",
                                ],
                            )
                        ),
                        name="triage_item_state_is_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("redrive__isnull", False), ("state", "claimed")),
                            models.Q(
                                models.Q(("state", "claimed"), _negated=True),
                                ("redrive", None),
                            ),
                            _connector="OR",
                        ),
                        name="triage_item_claimed_has_a_redrive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("state", "skipped"),
                                models.Q(("reason", ""), _negated=True),
                            ),
                            models.Q(
                                models.Q(("state", "skipped"), _negated=True),
                                ("reason", ""),
                            ),
                            _connector="OR",
                        ),
                        name="triage_item_skipped_has_a_reason",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("held", False),
                            ("state__in", ["waiting", "claimed"]),
                            _connector="OR",
                        ),
                        name="triage_item_is_held_only_while_open",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkerBeat",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, primary_key=True, serialize=False
                    ),
                ),
                ("at", models.DateTimeField()),
            ],
            options={
                "db_table": "triage_worker_beat",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)),
                        name="triage_worker_beat_is_one_row",
                    )
                ],
            },
        ),
    ]
