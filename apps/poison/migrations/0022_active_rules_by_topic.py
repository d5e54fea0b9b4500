"""The index of active skips by a rule: a topic's are few among its automatic skips."""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("poison", "0021_windows_count_deliveries")]

    operations = [
        AddIndexConcurrently(
            model_name="skip",
            index=models.Index(
                condition=models.Q(("kind", "rule"), ("removed_revision", None)),
                fields=["topic"],
                name="poison_skip_rules",
            ),
        ),
    ]
