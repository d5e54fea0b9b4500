"""Keys may be given the right to call the gateway."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration

KNOWN = [
    "capture:write",
    "skips:read",
    "skips:write",
    "positions:read",
    "positions:write",
    "poisons:read",
    "bodies:read",
    "problems:read",
    "operations:read",
    "operations:write",
    "brokers:read",
    "brokers:write",
    "audit:read",
    "reports:read",
    "reports:write",
    "metrics:read",
    "gateway:call",
]
# Taken back, no key keeps a right that is not known any more.
FORGET = """
UPDATE team_api_key SET scopes = array_remove(scopes, 'gateway:call')
WHERE 'gateway:call' = ANY(scopes)
"""


class Migration(LockTimeoutMigration):
    dependencies = [("team", "0007_code_guesses")]

    operations = [
        migrations.RemoveConstraint(
            model_name="apikey", name="team_api_key_scopes_are_known"
        ),
        migrations.RunSQL(migrations.RunSQL.noop, FORGET),
        migrations.AddConstraint(
            model_name="apikey",
            constraint=models.CheckConstraint(
                condition=models.Q(scopes__contained_by=KNOWN),
                name="team_api_key_scopes_are_known",
            ),
        ),
    ]
