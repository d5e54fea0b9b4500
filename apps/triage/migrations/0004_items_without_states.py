"""Items are written once: windows, holds and redrives say what became of them."""

from __future__ import annotations

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import AtOnce, LockTimeoutMigration

# An earlier release called a preview cancelled that another one had replaced. As an
# expired preview it will be deleted with its items.
REPLACED_PREVIEWS = """
UPDATE triage_operation SET state = 'preview', finished_at = NULL,
       expires_at = least(expires_at, now())
WHERE state = 'cancelled' AND confirmed_at IS NULL
"""


class Migration(LockTimeoutMigration):
    dependencies = [
        ("poison", "0013_holds_and_windows"),
        ("triage", "0003_previews_stand_alone"),
    ]

    operations = [
        migrations.RunSQL(REPLACED_PREVIEWS, migrations.RunSQL.noop),
        # The table stays: the release before may still run. `earlier_layout_conversion` empties it.
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.DeleteModel(name="Item")]
        ),
        migrations.CreateModel(
            name="Item",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "operation",
                        "number",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                (
                    "operation",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="triage.operation",
                    ),
                ),
                (
                    "poison",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="items",
                        to="poison.poison",
                    ),
                ),
            ],
            options={"db_table": "triage_selected_item"},
        ),
        migrations.CreateModel(
            name="SkippedItem",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "operation",
                        "number",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "operation",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="skipped",
                        to="triage.operation",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("reason", models.TextField()),
            ],
            options={
                "db_table": "triage_skipped_item",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("reason", ""), _negated=True),
                        name="triage_skipped_item_has_a_reason",
                    ),
                ],
            },
        ),
        # The last: it locks the table that each page reads.
        AtOnce(
            [
                migrations.RemoveConstraint(
                    model_name="operation",
                    name="triage_operation_state_is_known",
                ),
                migrations.RemoveConstraint(
                    model_name="operation",
                    name="triage_operation_confirmed_has_confirmed_at",
                ),
                migrations.RemoveConstraint(
                    model_name="operation",
                    name="triage_operation_finished_has_finished_at",
                ),
                migrations.RemoveConstraint(
                    model_name="operation",
                    name="triage_operation_drop_has_a_reason",
                ),
                migrations.RemoveIndex(
                    model_name="operation",
                    name="triage_operation_unfinished",
                ),
                migrations.AddField(
                    model_name="operation",
                    name="judged",
                    field=models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="items that it holds, acted on or skipped",
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="layout",
                    field=models.PositiveSmallIntegerField(
                        db_default=1,
                        default=2,
                        help_text="1: its items are in `triage_item`",
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="paused_because",
                    field=models.TextField(
                        db_default="", default="", help_text="why it paused itself"
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="ramp",
                    field=models.JSONField(
                        help_text="the steps, and what each must show", null=True
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="retry_of",
                    field=models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="retried_by",
                        to="triage.operation",
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="standings",
                    field=django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        db_default=[],
                        default=list,
                        help_text="of the messages of `retry_of` that are sent again",
                        size=None,
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="ramp_to",
                    field=models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="messages that its step allows in all",
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="ramp_waits_since",
                    field=models.DateTimeField(null=True),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="rate",
                    field=models.PositiveIntegerField(
                        help_text="messages a second, at most", null=True
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="run",
                    field=models.PositiveIntegerField(
                        db_default=0, default=0, help_text="one more for each run"
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="will_act",
                    field=models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="items that its preview did not skip",
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="window_size",
                    field=models.PositiveSmallIntegerField(db_default=500, default=500),
                ),
                migrations.AlterField(
                    model_name="operation",
                    name="epoch",
                    field=models.PositiveIntegerField(
                        default=0, help_text="of runs of layout 1"
                    ),
                ),
                migrations.AddIndex(
                    model_name="operation",
                    index=models.Index(
                        condition=models.Q(
                            ("state__in", ("queued", "running", "cancelling"))
                        ),
                        fields=["id"],
                        name="triage_operation_unfinished",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="operation",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            (
                                "state__in",
                                [
                                    "preview",
                                    "queued",
                                    "running",
                                    "paused",
                                    "cancelling",
                                    "cancelled",
                                    "done",
                                ],
                            )
                        ),
                        name="triage_operation_state_is_known",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="operation",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("confirmed_at__isnull", False),
                                (
                                    "state__in",
                                    (
                                        "queued",
                                        "running",
                                        "paused",
                                        "cancelling",
                                        "cancelled",
                                        "done",
                                    ),
                                ),
                            ),
                            models.Q(
                                models.Q(
                                    (
                                        "state__in",
                                        (
                                            "queued",
                                            "running",
                                            "paused",
                                            "cancelling",
                                            "cancelled",
                                            "done",
                                        ),
                                    ),
                                    _negated=True,
                                ),
                                ("confirmed_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="triage_operation_confirmed_has_confirmed_at",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="operation",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False),
                                ("state__in", ("cancelled", "done")),
                            ),
                            models.Q(
                                models.Q(
                                    ("state__in", ("cancelled", "done")), _negated=True
                                ),
                                ("finished_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="triage_operation_finished_has_finished_at",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="operation",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                (
                                    "state__in",
                                    (
                                        "queued",
                                        "running",
                                        "paused",
                                        "cancelling",
                                        "cancelled",
                                        "done",
                                    ),
                                ),
                                ("verb", "drop"),
                                _negated=True,
                            ),
                            models.Q(("reason", ""), _negated=True),
                            _connector="OR",
                        ),
                        name="triage_operation_drop_has_a_reason",
                    ),
                ),
            ]
        ),
    ]
