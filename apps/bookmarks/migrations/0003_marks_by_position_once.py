"""One index less to keep: that of position and publisher finds a position's marks."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("bookmarks", "0002_settled_positions"),
    ]

    operations = [
        migrations.AlterField(
            model_name="mark",
            name="position",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="marks",
                to="bookmarks.bookmarkposition",
            ),
        ),
    ]
