"""Poisons can be given back to their queue, and redriven in their order."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q

BEFORE = ["redrive", "drop", "restore"]
# Taken back, what was given back counts as a redrive that went elsewhere.
FORGET = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE triage_operation SET verb = 'redrive' WHERE verb = 'give_back';
SET CONSTRAINTS ALL DEFERRED
"""


VERBS = "triage_operation_verb_is_known"
TARGETS = "triage_operation_only_a_redrive_has_a_target"


class Migration(migrations.Migration):
    dependencies = [("triage", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="operation",
            name="ordered",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="each topic's messages in order",
            ),
        ),
        migrations.RemoveConstraint(model_name="operation", name=VERBS),
        migrations.RemoveConstraint(model_name="operation", name=TARGETS),
        migrations.RunSQL(migrations.RunSQL.noop, FORGET),
        migrations.AddConstraint(
            model_name="operation",
            constraint=models.CheckConstraint(
                name=VERBS, condition=Q(verb__in=[*BEFORE, "give_back"])
            ),
        ),
        migrations.AddConstraint(
            model_name="operation",
            constraint=models.CheckConstraint(
                name=TARGETS,
                condition=Q(verb__in=("redrive", "give_back")) | Q(target_topic=None),
            ),
        ),
    ]
