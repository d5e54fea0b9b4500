"""Windows also count deliveries: those that were made due, and those given up."""

from __future__ import annotations

from functools import reduce
from operator import add

from django.db import migrations, models
from django.db.models import F, Q

from apps.core.schema_changes import AtOnce, LockTimeoutMigration

CONSTRAINT = "poison_window_counts_an_item_once"
COUNTED = (
    *("sending", "sent", "confirmed", "recurred", "refused", "skipped", "unknown"),
    *("dropped", "restored", "moved", "due", "given_up"),
)


class Migration(LockTimeoutMigration):
    dependencies = [("poison", "0020_sends_without_foreign_keys")]

    operations = [
        AtOnce(
            [
                migrations.RemoveConstraint(model_name="itemwindow", name=CONSTRAINT),
                *(
                    migrations.AddField(
                        model_name="itemwindow",
                        name=name,
                        field=models.PositiveSmallIntegerField(db_default=0, default=0),
                    )
                    for name in ("due", "given_up")
                ),
                migrations.AddConstraint(
                    model_name="itemwindow",
                    constraint=models.CheckConstraint(
                        name=CONSTRAINT,
                        condition=Q(items__gte=reduce(add, map(F, COUNTED))),
                    ),
                ),
            ]
        )
    ]
