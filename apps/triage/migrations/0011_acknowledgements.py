"""Store that a person has seen what went wrong in an operation."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("triage", "0010_operations_of_other_kinds")]

    operations = [
        migrations.CreateModel(
            name="Acknowledgement",
            fields=[
                (
                    "operation",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="triage.operation",
                    ),
                ),
                ("actor", models.TextField()),
                ("at", models.DateTimeField()),
                ("refused", models.PositiveIntegerField()),
                ("recurred", models.PositiveIntegerField()),
                ("unknown", models.PositiveIntegerField()),
            ],
            options={"db_table": "triage_acknowledgement"},
        ),
    ]
