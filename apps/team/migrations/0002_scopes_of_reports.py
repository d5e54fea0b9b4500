"""Keys may be given the rights to read reports, and to ask for them."""

from __future__ import annotations

from django.db import migrations, models

KNOWN = [
    "capture:write",
    "positions:read",
    "poisons:read",
    "bodies:read",
    "problems:read",
    "operations:read",
    "operations:write",
    "audit:read",
    "reports:read",
    "reports:write",
]
# Taken back, no key keeps a right that is not known any more.
FORGET = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE team_api_key SET scopes = ARRAY(
    SELECT scope FROM unnest(scopes) AS scope
    WHERE scope NOT IN ('reports:read', 'reports:write'));
SET CONSTRAINTS ALL DEFERRED
"""


class Migration(migrations.Migration):
    dependencies = [("team", "0001_initial")]

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
