"""The index of what was sent to a topic: a topic that goes is looked for there."""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("poison", "0008_poisons_by_where_they_moved")]

    operations = [
        AddIndexConcurrently(
            model_name="redrive",
            index=models.Index(fields=["topic"], name="poison_redrive_by_topic"),
        ),
    ]
