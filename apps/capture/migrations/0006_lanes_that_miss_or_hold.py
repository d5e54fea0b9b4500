"""A queue that is not there is another thing than a broker that is away."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("capture", "0005_lanes")]

    operations = [
        migrations.RemoveConstraint(
            model_name="lane", name="capture_lane_state_is_known"
        ),
        migrations.RunSQL(
            migrations.RunSQL.noop,
            "UPDATE capture_lane SET state = 'away'"
            " WHERE state IN ('missing', 'holding')",
        ),
        migrations.AddConstraint(
            model_name="lane",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        ["off", "running", "paused", "away", "missing", "holding"],
                    )
                ),
                name="capture_lane_state_is_known",
            ),
        ),
    ]
