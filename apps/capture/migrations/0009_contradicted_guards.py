"""How often another consumer handled what a guard had failed on."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("capture", "0008_partitions_by_a_function")]

    operations = [
        migrations.AddField(
            model_name="guard",
            name="contradicted",
            field=models.BigIntegerField(
                db_default=0,
                default=0,
                help_text="messages that it failed on and another consumer handled",
            ),
        ),
    ]
