"""Indexes of the filters of the trail; the one by time alone is no longer needed."""

from __future__ import annotations

from django.contrib.postgres.operations import (
    AddIndexConcurrently,
    RemoveIndexConcurrently,
)
from django.db import migrations, models

# Who does what is no accident: without this, Postgres expects that half of the entries
# are the worker's confirmations, and reads them all to find that there is none.
TOGETHER = """
CREATE STATISTICS audit_entry_actor_action (mcv) ON actor, action FROM audit_entry;
"""
APART = "DROP STATISTICS audit_entry_actor_action"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("audit", "0003_last_checkpoint")]

    operations = [
        AddIndexConcurrently(
            model_name="entry",
            index=models.Index(fields=["at", "seq"], name="audit_entry_at_seq"),
        ),
        AddIndexConcurrently(
            model_name="entry",
            index=models.Index(
                fields=["actor", "action", "-seq"], name="audit_entry_actor_action"
            ),
        ),
        migrations.RunSQL(TOGETHER, APART),
        RemoveIndexConcurrently(model_name="entry", name="audit_entry_at"),
    ]
