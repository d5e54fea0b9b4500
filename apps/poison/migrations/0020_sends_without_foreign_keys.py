"""A hold and a redrive of each message that is sent each cost a check of its poison.

No poison is ever deleted, and who inserts them has locked it.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import ForeignKey

HOLD = ForeignKey(
    name="poison_hold_poison_id_fe8d9661_fk_poison_poison_id",
    table="poison_hold",
    column="poison_id",
    target="poison_poison",
)
REDRIVE = ForeignKey(
    name="poison_redrive_poison_id_5454d45b_fk_poison_poison_id",
    table="poison_redrive",
    column="poison_id",
    target="poison_poison",
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("poison", "0019_failure_counts_by_triggers")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[HOLD.removal(), REDRIVE.removal()],
            state_operations=[
                migrations.AlterField(
                    model_name="hold",
                    name="poison",
                    field=models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        primary_key=True,
                        related_name="hold",
                        serialize=False,
                        to="poison.poison",
                    ),
                ),
                migrations.AlterField(
                    model_name="redrive",
                    name="poison",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="redrives_made",
                        to="poison.poison",
                    ),
                ),
            ],
        ),
    ]
