"""Say of a topic that it replays: only there a skip can be of use to other readers."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("brokers", "0002_sample_brokers")]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="replays",
            # The database's default serves the release before, which writes none.
            field=models.BooleanField(
                default=False,
                db_default=False,
                help_text="a reader that starts anew is handed old messages again",
            ),
        ),
    ]
