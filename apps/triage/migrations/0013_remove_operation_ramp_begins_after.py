"""Remove a number that a ramp no longer needs: it counts what it has sent itself."""

from __future__ import annotations

from django.db import migrations

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("triage", "0012_ramps_and_speeds_that_begin_again")]

    operations = [migrations.RemoveField("operation", "ramp_begins_after")]
