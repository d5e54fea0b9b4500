"""When the use of a key that had ended was last put on record."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("team", "0005_sign_ins")]

    operations = [
        migrations.AddField(
            model_name="apikey",
            name="refused_at",
            field=models.DateTimeField(null=True),
        ),
    ]
