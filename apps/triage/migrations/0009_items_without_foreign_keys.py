"""Items are inserted by the million, and each cost two checks and a lock.

No poison is ever deleted, and an operation takes its items with it: by a trigger.
"""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import ForeignKey

OPERATION = ForeignKey(
    name="triage_selected_item_operation_id_276c6751_fk_triage_op",
    table="triage_selected_item",
    column="operation_id",
    target="triage_operation",
)
POISON = ForeignKey(
    name="triage_selected_item_poison_id_db89571e_fk_poison_poison_id",
    table="triage_selected_item",
    column="poison_id",
    target="poison_poison",
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("triage", "0008_replaced_previews_of_earlier_webs")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[OPERATION.removal(), POISON.removal()],
            state_operations=[
                migrations.AlterField(
                    model_name="item",
                    name="operation",
                    field=models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="triage.operation",
                    ),
                ),
                migrations.AlterField(
                    model_name="item",
                    name="poison",
                    field=models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="items",
                        to="poison.poison",
                    ),
                ),
            ],
        ),
    ]
