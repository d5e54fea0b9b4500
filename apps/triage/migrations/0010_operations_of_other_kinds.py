"""An operation may be about other items than poisons: its row says which kind.

On the way back, operations of other kinds are deleted with their windows. What they did
stays done, and the audit trail keeps each of them.
"""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q

from apps.core.schema_changes import AtOnce, LockTimeoutMigration

VERBS = "triage_operation_verb_is_known"
LAYOUTS = "triage_operation_layout_is_of_its_kind"
OF_POISONS = ["redrive", "drop", "restore", "give_back"]
FORGET = """
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM poison_window
WHERE operation IN (SELECT id FROM triage_operation WHERE kind <> 'poison');
DELETE FROM triage_operation WHERE kind <> 'poison';
SET CONSTRAINTS ALL DEFERRED
"""


class Migration(LockTimeoutMigration):
    dependencies = [
        ("poison", "0021_windows_count_deliveries"),
        ("triage", "0009_items_without_foreign_keys"),
    ]

    operations = [
        AtOnce(
            [
                migrations.RemoveConstraint(model_name="operation", name=VERBS),
                migrations.AddField(
                    model_name="operation",
                    name="kind",
                    field=models.CharField(
                        db_default="poison",
                        default="poison",
                        help_text="what its items are",
                        max_length=10,
                    ),
                ),
                migrations.AddConstraint(
                    model_name="operation",
                    constraint=models.CheckConstraint(
                        name=VERBS,
                        condition=Q(kind="poison", verb__in=OF_POISONS)
                        | Q(
                            kind="delivery",
                            verb__in=["try_now", "give_up", "restore"],
                        ),
                    ),
                ),
                migrations.AddConstraint(
                    model_name="operation",
                    constraint=models.CheckConstraint(
                        name=LAYOUTS,
                        condition=Q(kind="poison", layout__lt=3)
                        | ~Q(kind="poison") & Q(layout=3),
                    ),
                ),
            ]
        ),
        # The first on the way back.
        migrations.RunSQL(migrations.RunSQL.noop, FORGET),
    ]
