"""Lanes get a state for a queue that its broker makes with the first dead letter."""

from __future__ import annotations

from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration


class Migration(LockTimeoutMigration):
    dependencies = [("capture", "0006_lanes_that_miss_or_hold")]

    operations = [
        migrations.RemoveConstraint(
            model_name="lane", name="capture_lane_state_is_known"
        ),
        migrations.RunSQL(
            migrations.RunSQL.noop,
            "UPDATE capture_lane SET state = 'running' WHERE state = 'expected'",
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            *("off", "running", "paused", "away", "missing"),
                            *("expected", "holding"),
                        ],
                    )
                ),
                name="capture_lane_state_is_known",
            ),
        ),
    ]
