"""Wrong codes of a second factor are counted by account, too."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q

from apps.core.schema_changes import LockTimeoutMigration

NAME = "team_sign_in_failures_counted_by_is_known"
KINDS = ["address", "account_at_address", "account", "codes_of_account"]


class Migration(LockTimeoutMigration):
    dependencies = [("team", "0006_refused_keys")]

    operations = [
        migrations.RemoveConstraint(model_name="signinfailures", name=NAME),
        migrations.AddConstraint(
            model_name="signinfailures",
            constraint=models.CheckConstraint(
                name=NAME, condition=Q(counted_by__in=KINDS)
            ),
        ),
        # On the way back this comes first: the old constraint knows no such rows.
        migrations.RunSQL(
            migrations.RunSQL.noop,
            "DELETE FROM team_sign_in_failures WHERE counted_by = 'codes_of_account'",
        ),
    ]
