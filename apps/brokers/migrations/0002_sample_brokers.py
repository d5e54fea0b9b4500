"""Say of a broker that it is the sample's, so that no page mixes that up with work."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("brokers", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="broker",
            name="is_sample",
            # The database's default serves the release before, which writes none.
            field=models.BooleanField(
                default=False, db_default=False, help_text="what it carries is made up"
            ),
        ),
    ]
