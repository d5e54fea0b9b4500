"""The index of all skips of a topic: a topic that goes is looked for there."""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("poison", "0009_redrives_by_topic")]

    operations = [
        AddIndexConcurrently(
            model_name="skip",
            index=models.Index(fields=["topic"], name="poison_skip_by_topic"),
        ),
    ]
