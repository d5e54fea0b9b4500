"""Previews replace each other no more, so what each asked for needs no digest.

The column stays, and may be null, for the release before this one, which writes it.
"""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration

FILL = """
UPDATE triage_operation SET scope = sha256(token::text::bytea) WHERE scope IS NULL
"""


class Migration(LockTimeoutMigration):
    dependencies = [("triage", "0002_give_back_and_order")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "ALTER TABLE triage_operation ALTER COLUMN scope DROP NOT NULL",
                    FILL
                    + "; ALTER TABLE triage_operation ALTER COLUMN scope SET NOT NULL",
                ),
            ],
            state_operations=[
                migrations.RemoveField(model_name="operation", name="scope"),
            ],
        ),
        migrations.AlterField(
            model_name="operation",
            name="reason",
            field=models.TextField(default="", help_text="a draft, until confirmed"),
        ),
    ]
