"""Store where an operation sends the messages of topics that are requeued elsewhere."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [
        ("brokers", "0007_topics_requeued_elsewhere"),
        ("triage", "0006_previews_counted_once"),
    ]

    operations = [
        migrations.CreateModel(
            name="Redirect",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "operation",
                        "topic",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "operation",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="redirects",
                        to="triage.operation",
                    ),
                ),
                *(
                    (
                        name,
                        models.ForeignKey(
                            on_delete=django.db.models.deletion.PROTECT,
                            related_name="+",
                            to="brokers.topic",
                        ),
                    )
                    for name in ("topic", "target")
                ),
            ],
            options={"db_table": "triage_redirect"},
        ),
    ]
