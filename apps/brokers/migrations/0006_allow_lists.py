"""Give brokers an allow-list, and mark those that are older than the address rules.

`manage.py prepare` writes the lists of the marked ones: it can read their addresses.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("brokers", "0005_one_topic_per_queue")]

    # The database's defaults serve the release before, which writes none.
    operations = [
        *(
            migrations.AddField(
                model_name="broker",
                name=name,
                field=ArrayField(models.TextField(), default=list, db_default=[]),
            )
            for name in ("allowed_unconfirmed", "allowed_confirmed")
        ),
        migrations.AddField(
            model_name="broker",
            name="predates_address_rules",
            field=models.BooleanField(
                default=False,
                db_default=False,
                help_text="its allow-list is still to be written",
            ),
        ),
        migrations.RunSQL(
            "UPDATE brokers_broker SET predates_address_rules = true",
            migrations.RunSQL.noop,
        ),
    ]
