"""Create the tables of the outbox, by the SQL of the SDK.

Back again, they are dropped unless a message waits or is quarantined. The tables of
the locks stay: the application may use them, and a fence must not come again.
"""

from __future__ import annotations

from django.db import migrations, models

from poisonguard.outbox.postgres_schema import schema
from poisonguard_django.postgres_operation import PostgresOnlySQL

DROP = """
DO $$
BEGIN
    LOCK TABLE poisonguard_outbox IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (
        SELECT FROM poisonguard_outbox WHERE sent_at IS NULL AND duplicate_of IS NULL
    ) THEN
        RAISE EXCEPTION 'poisonguard_outbox has messages that were not sent'
            USING HINT = 'Let a sweeper send them, or delete them.';
    END IF;
END
$$;
DROP TABLE poisonguard_outbox;
DROP TABLE poisonguard_outbox_sent;
DROP TABLE poisonguard_outbox_sweeper;
DROP TABLE poisonguard_outbox_figures;
DROP FUNCTION poisonguard_outbox_note_writer();
"""


class Migration(migrations.Migration):
    initial = True
    dependencies = []

    operations = [
        PostgresOnlySQL(schema(), DROP),
        migrations.CreateModel(
            name="OutboxEntry",
            fields=[
                ("row_id", models.BigAutoField(primary_key=True, serialize=False)),
                ("producer", models.TextField()),
                ("message_id", models.TextField()),
                ("topic", models.TextField()),
                ("key", models.TextField()),
                ("body_bytes", models.IntegerField()),
                ("created_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("attempts", models.IntegerField()),
                ("sent_at", models.DateTimeField(null=True)),
                ("duplicate_of", models.BigIntegerField(null=True)),
                ("quarantined_at", models.DateTimeField(null=True)),
                ("quarantine_cause", models.TextField(null=True)),
                ("quarantine_reason", models.TextField(null=True)),
                ("writer_user", models.TextField(null=True)),
                ("writer_application", models.TextField(null=True)),
                ("writer_address", models.GenericIPAddressField(null=True)),
                ("writer_transaction", models.BigIntegerField(null=True)),
                ("written_at", models.DateTimeField(null=True)),
            ],
            options={
                "verbose_name": "message of the outbox",
                "verbose_name_plural": "messages of the outbox",
                "db_table": "poisonguard_outbox",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
