"""Whether consumers or their broker counted, and what a wrong clock had claimed."""

from __future__ import annotations

from django.db import migrations, models

import apps.core.postgres_transaction_fields


class Migration(migrations.Migration):
    dependencies = [("capture", "0002_counters_by_day")]

    operations = [
        migrations.AddField(
            model_name="counter",
            name="captured_xid",
            field=apps.core.postgres_transaction_fields.TransactionIdField(
                db_default=apps.core.postgres_transaction_fields.CurrentTransaction()
            ),
        ),
        migrations.AddField(
            model_name="counter",
            name="minute_claimed",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="counter",
            name="source",
            # The database's default serves the release before, which writes none.
            field=models.CharField(default="sdk", db_default="sdk", max_length=10),
        ),
        migrations.RunSQL(
            "ALTER TABLE capture_counter ADD CONSTRAINT capture_counter_source_is_known"
            " CHECK (source IN ('sdk', 'broker'))",
            "ALTER TABLE capture_counter DROP CONSTRAINT"
            " capture_counter_source_is_known",
        ),
    ]
