"""The index of operations by the problems that they decided on."""

from __future__ import annotations

from django.db import migrations

BY_PROBLEM = """
CREATE INDEX CONCURRENTLY audit_entry_problems ON audit_entry
USING gin ((detail -> 'problems') jsonb_path_ops) WHERE action = 'operation.confirmed';
"""
NOT_BY_PROBLEM = "DROP INDEX CONCURRENTLY audit_entry_problems"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("audit", "0004_trail_by_time_and_number")]

    operations = [migrations.RunSQL(BY_PROBLEM, NOT_BY_PROBLEM)]
