"""Wrong passwords are counted, and a person's sessions can be ended."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("team", "0004_scopes_of_brokers")]

    operations = [
        migrations.AddField(
            model_name="user",
            name="sessions_ended_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.CreateModel(
            name="SignInFailures",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True,
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("counted_by", models.CharField(max_length=20)),
                (
                    "digest",
                    models.BinaryField(
                        help_text="SHA-256 of the address, the account or both"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("last_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "db_table": "team_sign_in_failures",
                "constraints": [
                    models.UniqueConstraint(
                        fields=["counted_by", "digest"],
                        name="team_sign_in_failures_once",
                    ),
                    models.CheckConstraint(
                        name="team_sign_in_failures_counted_by_is_known",
                        condition=Q(
                            counted_by__in=["address", "account_at_address", "account"]
                        ),
                    ),
                ],
            },
        ),
    ]
