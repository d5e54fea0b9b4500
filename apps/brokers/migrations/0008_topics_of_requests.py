"""Let the messages of a topic be requests for endpoints."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import F, Q

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("brokers", "0007_topics_requeued_elsewhere")]

    # The database's default serves the release before, which writes none.
    operations = [
        migrations.AddField(
            model_name="topic",
            name="request_endpoints",
            field=ArrayField(
                models.TextField(),
                default=list,
                db_default=[],
                help_text="patterns of the endpoints that its messages are requests for",
            ),
        ),
        migrations.AddConstraint(
            model_name="topic",
            constraint=models.CheckConstraint(
                name="brokers_topic_of_requests_reads_itself",
                condition=Q(request_endpoints=[])
                | Q(dead_letter_queue=F("native_name")),
            ),
        ),
    ]
