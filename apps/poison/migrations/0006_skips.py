"""The skip list, and failures whose consumer may be what is sick."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Func, Q


class Migration(migrations.Migration):
    dependencies = [
        ("brokers", "0003_topics_that_replay"),
        ("poison", "0005_redrives_by_time"),
    ]

    operations = [
        migrations.AddField(
            model_name="poison",
            name="suspected",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="every consumer that failed with it may itself be what is sick",
            ),
        ),
        migrations.AddField(
            model_name="failure",
            name="suspected",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="its consumer may be what is sick",
            ),
        ),
        migrations.CreateModel(
            name="StoreEpoch",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, primary_key=True, serialize=False
                    ),
                ),
                ("value", models.UUIDField()),
            ],
            options={
                "db_table": "poison_store_epoch",
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(id=1), name="poison_store_epoch_is_one"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SkipList",
            fields=[
                (
                    "topic",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="skip_list",
                        serialize=False,
                        to="brokers.topic",
                    ),
                ),
                ("revision", models.BigIntegerField(db_default=0, default=0)),
                ("floor", models.BigIntegerField(db_default=0, default=0)),
                ("automatic", models.PositiveIntegerField(db_default=0, default=0)),
                ("minute", models.DateTimeField(null=True)),
                ("made", models.PositiveIntegerField(db_default=0, default=0)),
                ("withheld", models.BigIntegerField(db_default=0, default=0)),
                ("withheld_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": "poison_skip_list",
                "constraints": [
                    models.CheckConstraint(
                        condition=Q(floor__gte=0, floor__lte=F("revision")),
                        name="poison_skip_list_floor_is_below",
                    ),
                    models.CheckConstraint(
                        condition=Q(withheld=0, withheld_at=None)
                        | Q(withheld__gt=0, withheld_at__isnull=False),
                        name="poison_skip_list_withheld_has_a_time",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Skip",
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
                ("consumer_group", models.TextField(null=True)),
                ("kind", models.CharField(max_length=12)),
                ("value", models.BinaryField()),
                (
                    "digest",
                    models.GeneratedField(
                        db_persist=True,
                        expression=Func("value", function="sha256"),
                        output_field=models.BinaryField(),
                    ),
                ),
                ("handler_version", models.TextField(null=True)),
                ("publisher", models.TextField(null=True)),
                ("seq", models.BigIntegerField(null=True)),
                ("redrive", models.UUIDField(null=True)),
                ("reason", models.TextField(default="")),
                ("by", models.TextField(help_text="the actor")),
                ("is_automatic", models.BooleanField(default=False)),
                ("at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                ("revision", models.BigIntegerField()),
                ("removed_revision", models.BigIntegerField(null=True)),
                ("removed_at", models.DateTimeField(null=True)),
                ("removed_by", models.TextField(default="")),
                (
                    "because",
                    models.CharField(default="", help_text="it ended", max_length=10),
                ),
                ("removed_reason", models.TextField(default="")),
                (
                    "applied",
                    models.BigIntegerField(default=0, help_text="messages passed over"),
                ),
                ("last_applied_at", models.DateTimeField(null=True)),
                (
                    "poison",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="skips",
                        to="poison.poison",
                    ),
                ),
                (
                    "topic",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="skips",
                        to="brokers.topic",
                    ),
                ),
            ],
            options={
                "db_table": "poison_skip",
                "indexes": [
                    models.Index(
                        condition=Q(removed_revision=None),
                        fields=["topic", "revision"],
                        name="poison_skip_active",
                    ),
                    models.Index(
                        condition=Q(removed_revision__isnull=False),
                        fields=["topic", "removed_revision"],
                        name="poison_skip_ended",
                    ),
                    models.Index(
                        condition=Q(removed_revision=None),
                        fields=["expires_at"],
                        name="poison_skip_expiry",
                    ),
                    models.Index(
                        condition=Q(poison__isnull=False),
                        fields=["poison"],
                        name="poison_skip_of_poison",
                    ),
                    models.Index(
                        condition=Q(removed_revision=None),
                        fields=["-at", "-id"],
                        name="poison_skip_recent",
                    ),
                    models.Index(
                        condition=Q(removed_revision__isnull=False),
                        fields=["-removed_at", "-id"],
                        name="poison_skip_history",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=[
                            *("digest", "topic", "kind"),
                            *("consumer_group", "handler_version"),
                        ],
                        condition=Q(removed_revision=None),
                        name="poison_skip_active_once",
                        nulls_distinct=False,
                    ),
                    models.CheckConstraint(
                        condition=Q(
                            kind__in=["bookmark", "message_id", "body_digest", "rule"]
                        ),
                        name="poison_skip_kind_is_known",
                    ),
                    models.CheckConstraint(
                        condition=Q(because="", removed_at=None, removed_revision=None)
                        | Q(
                            because__in=["removed", "expired", "passed"],
                            removed_at__isnull=False,
                            removed_revision__gt=F("revision"),
                        ),
                        name="poison_skip_ends_whole",
                    ),
                    models.CheckConstraint(
                        condition=Q(is_automatic=False)
                        | Q(
                            consumer_group__isnull=False,
                            expires_at__isnull=False,
                            kind="bookmark",
                        ),
                        name="poison_skip_automatic_is_one_message_for_one_group",
                    ),
                    models.CheckConstraint(
                        condition=Q(applied=0, last_applied_at=None)
                        | Q(applied__gt=0, last_applied_at__isnull=False),
                        name="poison_skip_applied_has_a_time",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SkipCount",
            fields=[
                ("report", models.UUIDField(primary_key=True, serialize=False)),
                ("consumer_group", models.TextField()),
                ("client_name", models.TextField()),
                ("count", models.PositiveIntegerField()),
                ("counted_at", models.DateTimeField(db_index=True)),
                (
                    "skip",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="counts",
                        to="poison.skip",
                    ),
                ),
            ],
            options={"db_table": "poison_skip_count"},
        ),
    ]
