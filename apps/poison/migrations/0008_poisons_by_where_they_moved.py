"""The index of what was moved to a topic: a topic that goes is looked for there."""

from __future__ import annotations

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("poison", "0007_given_back_and_matched")]

    operations = [
        AddIndexConcurrently(
            model_name="poison",
            index=models.Index(
                condition=models.Q(("moved_to__isnull", False)),
                fields=["moved_to"],
                name="poison_moved",
            ),
        ),
    ]
