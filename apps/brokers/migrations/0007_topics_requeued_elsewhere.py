"""Let the policies of a topic say where its messages are sent again."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("brokers", "0006_allow_lists")]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="requeue_topic",
            field=models.ForeignKey(
                null=True,
                help_text="where its messages are sent again, if not to itself",
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="brokers.topic",
            ),
        ),
        migrations.AddConstraint(
            model_name="topic",
            constraint=models.CheckConstraint(
                name="brokers_topic_is_requeued_to_another",
                condition=Q(requeue_topic=None) | ~Q(requeue_topic=F("id")),
            ),
        ),
    ]
