"""Let a dead-letter queue belong to one topic of its broker.

Topics that share a queue already go on as they are: of each such group the oldest
owns the queue, and `shares_queue` marks the others until they get a queue of their own.
"""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q

from apps.core.schema_changes import LockTimeoutMigration

# In one transaction with the columns: the lock of the first statement keeps out what
# would be written between the marks and the constraint.
MARK = """
    UPDATE brokers_topic SET shares_queue = true
    FROM brokers_topic AS older
    WHERE older.broker_id = brokers_topic.broker_id
    AND older.dead_letter_queue = brokers_topic.dead_letter_queue
    AND older.dead_letter_queue <> '' AND older.id < brokers_topic.id
"""


class Migration(LockTimeoutMigration):
    dependencies = [("brokers", "0004_topics_with_policies")]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="shares_queue",
            # The database's default serves the release before, which writes none.
            field=models.BooleanField(
                default=False,
                db_default=False,
                help_text="an older topic reads the same dead-letter queue",
            ),
        ),
        migrations.RunSQL(MARK, migrations.RunSQL.noop),
        migrations.AddConstraint(
            model_name="topic",
            constraint=models.UniqueConstraint(
                fields=["broker", "dead_letter_queue"],
                name="brokers_topic_dead_letter_queue_once",
                condition=~Q(dead_letter_queue="") & Q(shares_queue=False),
            ),
        ),
    ]
