"""What a preview shows is counted once, when its items are taken."""

from __future__ import annotations

import importlib
from typing import Any

from django.db import migrations, models

from apps.core.schema_changes import AtOnce, LockTimeoutMigration

BEFORE: Any = importlib.import_module(
    "apps.triage.migrations.0005_beside_the_release_before"
)


class Migration(LockTimeoutMigration):
    dependencies = [("triage", "0005_beside_the_release_before")]

    operations = [
        AtOnce(
            [
                migrations.AddField(
                    model_name="operation",
                    name="breakdown",
                    field=models.JSONField(
                        help_text="of its items, when taken", null=True
                    ),
                ),
                migrations.AddField(
                    model_name="operation",
                    name="newest",
                    field=models.BigIntegerField(
                        help_text="id of the newest message when it was asked for",
                        null=True,
                    ),
                ),
            ]
        ),
        # The way back begins with the last: it is refused before anything is undone.
        migrations.RunPython(migrations.RunPython.noop, BEFORE.require_nothing_lost),
    ]
