"""What the nightly report asks of a failure and of a redrive.

`captured_xid` tells what a snapshot saw. Its default is the same for all rows that are
there, so adding it rewrites no partition.
"""

from __future__ import annotations

from django.db import migrations, models

import apps.core.postgres_transaction_fields


class Migration(migrations.Migration):
    dependencies = [("poison", "0002_partitioned_by_day")]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="captured_xid",
            field=apps.core.postgres_transaction_fields.TransactionIdField(
                db_default=apps.core.postgres_transaction_fields.CurrentTransaction()
            ),
        ),
        migrations.AddField(
            model_name="failure",
            name="is_first",
            # The database's default serves the release before, which writes none.
            field=models.BooleanField(
                default=False, db_default=False, help_text="it made its poison"
            ),
        ),
        migrations.AddField(
            model_name="redrive",
            name="confirmed_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddConstraint(
            model_name="redrive",
            constraint=models.CheckConstraint(
                name="poison_redrive_only_an_answered_was_confirmed",
                condition=models.Q(outcome__in=["confirmed", "recurred"])
                | models.Q(confirmed_at=None),
            ),
        ),
    ]
