"""Give a topic its policies, and leave what lanes say of themselves to capture.

The columns of lanes stay for the release before; a default of the database's keeps
them filled, since this release writes none.
"""

from __future__ import annotations

from django.db import migrations, models

LANES: list[tuple[str, models.Field[str, str]]] = [
    ("lane_state", models.CharField(max_length=10, default="off", db_default="off")),
    ("lane_detail", models.TextField(default="", db_default="")),
]


class Migration(migrations.Migration):
    dependencies = [("brokers", "0003_topics_that_replay")]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="options",
            field=models.JSONField(
                default=dict,
                db_default={},
                help_text="what only its kind of broker knows",
            ),
        ),
        migrations.AddField(
            model_name="topic",
            name="owner",
            field=models.TextField(default="", db_default="", help_text="whom to ask"),
        ),
        migrations.AddField(
            model_name="topic",
            name="runbook",
            field=models.TextField(default="", db_default="", help_text="a link"),
        ),
        migrations.AddField(
            model_name="topic",
            name="retention_days",
            field=models.PositiveIntegerField(
                null=True, help_text="how long what is handled or dropped is kept"
            ),
        ),
        migrations.AddConstraint(
            model_name="topic",
            constraint=models.CheckConstraint(
                name="brokers_topic_retention_is_positive",
                condition=models.Q(retention_days=None)
                | models.Q(retention_days__gte=1),
            ),
        ),
        *(
            migrations.AlterField(model_name="topic", name=name, field=field)
            for name, field in LANES
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint(
                    model_name="topic", name="brokers_topic_lane_state_is_known"
                ),
                *(
                    migrations.RemoveField(model_name="topic", name=name)
                    for name in ("lane_state", "lane_detail", "lane_seen_at")
                ),
            ]
        ),
    ]
