"""The indexes by which a topic can be removed, made while the product runs."""

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
        AddIndexConcurrently(
            model_name="redrive",
            index=models.Index(fields=["topic"], name="poison_redrive_by_topic"),
        ),
        AddIndexConcurrently(
            model_name="skip",
            index=models.Index(fields=["topic"], name="poison_skip_by_topic"),
        ),
    ]
