"""The newest checkpoint of the trail, for its page."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("audit", "0002_append_only")]

    operations = [
        migrations.CreateModel(
            name="LastCheckpoint",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, primary_key=True, serialize=False
                    ),
                ),
                ("at", models.DateTimeField()),
                ("seq", models.BigIntegerField()),
                ("hash", models.BinaryField()),
                ("contradicts", models.BigIntegerField(null=True)),
                ("signature", models.TextField()),
                ("trouble", models.TextField(default="")),
            ],
            options={
                "db_table": "audit_last_checkpoint",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)),
                        name="audit_last_checkpoint_is_one_row",
                    )
                ],
            },
        ),
    ]
