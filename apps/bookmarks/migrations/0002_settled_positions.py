"""Positions that consumers settle here; those that brokers tell stay as they are."""

from __future__ import annotations

import django.db.models.deletion
from django.contrib.postgres.indexes import BrinIndex
from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Now

from apps.bookmarks.runs_of_settled_positions import RunsField

SDK = Q(source="sdk")
BROKER = Q(source="broker")
# Taken back, the tables hold what only a broker tells, as they did before.
# At once, for a table that waits for its checks cannot be altered.
FORGET_SETTLED = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM bookmarks_mark mark USING bookmarks_position position
WHERE mark.position_id = position.id AND position.source = 'sdk';
DELETE FROM bookmarks_position WHERE source = 'sdk';
SET CONSTRAINTS ALL DEFERRED
"""
# Each mark is updated about once a second: room for the next row on the same page.
LEAVE_ROOM = "ALTER TABLE bookmarks_mark SET (fillfactor = 50)"
LEAVE_NO_ROOM = "ALTER TABLE bookmarks_mark RESET (fillfactor)"


class Migration(migrations.Migration):
    dependencies = [
        ("bookmarks", "0001_initial"),
    ]

    operations = [
        migrations.RunSQL(LEAVE_ROOM, LEAVE_NO_ROOM),
        migrations.RemoveConstraint(
            model_name="bookmarkposition", name="bookmarks_position_source_is_known"
        ),
        migrations.RemoveConstraint(
            model_name="mark", name="bookmarks_mark_is_not_negative"
        ),
        migrations.AddField(
            model_name="bookmarkposition",
            name="epoch",
            field=models.BigIntegerField(default=0, db_default=0),
        ),
        migrations.AlterField(
            model_name="bookmarkposition",
            name="observed_at",
            field=models.DateTimeField(help_text="told by its broker, or opened"),
        ),
        migrations.AlterField(
            model_name="bookmarkposition",
            name="moved_at",
            field=models.DateTimeField(
                help_text="got ahead at its broker, or was moved"
            ),
        ),
        migrations.AlterField(
            model_name="mark",
            name="bookmark",
            field=models.TextField(
                help_text="of the watermark, or of a place before it"
            ),
        ),
        migrations.AlterField(
            model_name="mark",
            name="head",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AlterField(
            model_name="mark",
            name="head_bookmark",
            field=models.TextField(default="", db_default=""),
        ),
        migrations.AlterField(
            model_name="mark",
            name="pending",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="mark",
            name="epoch",
            field=models.BigIntegerField(default=0, db_default=0),
        ),
        migrations.AddField(
            model_name="mark", name="settled", field=RunsField(null=True)
        ),
        migrations.AddField(
            model_name="mark",
            name="received",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="mark",
            name="persisted",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="mark",
            name="settled_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.RunSQL(migrations.RunSQL.noop, FORGET_SETTLED),
        migrations.AddConstraint(
            model_name="bookmarkposition",
            constraint=models.CheckConstraint(
                name="bookmarks_position_source_is_known",
                condition=Q(source__in=["broker", "sdk"]),
            ),
        ),
        migrations.AddConstraint(
            model_name="bookmarkposition",
            constraint=models.CheckConstraint(
                name="bookmarks_position_has_a_holder",
                condition=Q(source="sdk") & ~Q(client_name="") & ~Q(sub_id="")
                | Q(source="broker", epoch=0),
            ),
        ),
        migrations.AddConstraint(
            model_name="mark",
            constraint=models.CheckConstraint(
                name="bookmarks_mark_is_not_negative",
                condition=Q(processed__gte=-1)
                & (Q(head=None) | Q(head__gte=0))
                & (Q(pending=None) | Q(pending__gte=0)),
            ),
        ),
        migrations.AddConstraint(
            model_name="mark",
            constraint=models.CheckConstraint(
                name="bookmarks_mark_is_told_or_settled",
                condition=Q(settled=None, head__isnull=False, processed__gte=0)
                | Q(settled__isnull=False, head=None),
            ),
        ),
        migrations.AddIndex(
            model_name="bookmarkposition",
            index=models.Index(
                fields=["client_name", "sub_id"], name="bookmarks_position_by_client"
            ),
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
                ("at", models.DateTimeField()),
                ("processed", models.BigIntegerField()),
                (
                    "mark",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="samples",
                        to="bookmarks.mark",
                    ),
                ),
            ],
            options={
                "db_table": "bookmarks_sample",
                "indexes": [
                    BrinIndex(fields=["at"], name="bookmarks_sample_times"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("mark", "at"), name="bookmarks_sample_once"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Move",
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
                ("epoch", models.BigIntegerField()),
                ("at", models.DateTimeField(db_default=Now())),
                ("actor", models.TextField()),
                ("reason", models.TextField()),
                (
                    "position",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="moves",
                        to="bookmarks.bookmarkposition",
                    ),
                ),
                (
                    "restores",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="bookmarks.move",
                    ),
                ),
            ],
            options={
                "db_table": "bookmarks_move",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("position", "epoch"), name="bookmarks_move_once"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Moved",
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
                ("publisher", models.TextField()),
                ("before", RunsField()),
                ("after", RunsField()),
                (
                    "move",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="marks",
                        to="bookmarks.move",
                    ),
                ),
            ],
            options={
                "db_table": "bookmarks_moved",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("move", "publisher"), name="bookmarks_moved_once"
                    ),
                ],
            },
        ),
    ]
