"""What senders need: the queues of their locks, and a sign that they live.

The tables are those of `poisonguard.locks.postgres.schema()`. With them go the fences,
which begin at 1 again after the way back.
"""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration

CREATE = """
CREATE TABLE IF NOT EXISTS poisonguard_lock_resources (
    name text PRIMARY KEY,
    last_ticket bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS poisonguard_lock_tickets (
    resource text NOT NULL,
    number bigint NOT NULL,
    session text NOT NULL,
    PRIMARY KEY (resource, number)
);
"""
DROP = """
UPDATE redelivery_endpoint_activity SET fence = 0;
DROP TABLE poisonguard_lock_tickets;
DROP TABLE poisonguard_lock_resources;
"""


class Migration(LockTimeoutMigration):
    dependencies = [("redelivery", "0001_endpoints_and_deliveries")]

    operations = [
        migrations.RunSQL(CREATE, DROP),
        migrations.AddField(
            "endpointactivity",
            "heard_at",
            models.DateTimeField(
                null=True, help_text="the last heartbeat of the sender that owns it"
            ),
        ),
    ]
