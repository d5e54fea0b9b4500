"""The index of the nightly report, made while the product runs."""

from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("poison", "0004_first_failures_and_confirmations")]

    operations = [
        AddIndexConcurrently(
            model_name="redrive",
            index=BrinIndex(
                fields=["sent_at", "confirmed_at", "answered_at"],
                name="poison_redrive_times",
            ),
        ),
    ]
