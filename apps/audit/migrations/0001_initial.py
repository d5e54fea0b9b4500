from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("seq", models.BigIntegerField(primary_key=True, serialize=False)),
                ("record", models.TextField()),
                ("hash", models.BinaryField()),
                (
                    "at",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.DateTimeField(),
                            template="to_timestamp((%(expressions)s::jsonb ->> 'at_us')::bigint / 1e6)",
                        ),
                        output_field=models.DateTimeField(),
                    ),
                ),
                (
                    "actor",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.TextField(),
                            template="(%(expressions)s::jsonb ->> 'actor')",
                        ),
                        output_field=models.TextField(),
                    ),
                ),
                (
                    "action",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.TextField(),
                            template="(%(expressions)s::jsonb ->> 'action')",
                        ),
                        output_field=models.TextField(),
                    ),
                ),
                (
                    "subject",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.TextField(),
                            template="(%(expressions)s::jsonb ->> 'subject')",
                        ),
                        output_field=models.TextField(),
                    ),
                ),
                (
                    "reason",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.TextField(),
                            template="(%(expressions)s::jsonb ->> 'reason')",
                        ),
                        output_field=models.TextField(),
                    ),
                ),
                (
                    "source",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.TextField(),
                            template="(%(expressions)s::jsonb ->> 'source')",
                        ),
                        output_field=models.TextField(),
                    ),
                ),
                (
                    "detail",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("record"),
                            output_field=models.JSONField(),
                            template="(%(expressions)s::jsonb -> 'detail')",
                        ),
                        output_field=models.JSONField(),
                    ),
                ),
            ],
            options={
                "db_table": "audit_entry",
                "indexes": [
                    models.Index(fields=["-at"], name="audit_entry_at"),
                    models.Index(fields=["actor", "-seq"], name="audit_entry_actor"),
                    models.Index(
                        fields=["subject", "-seq"], name="audit_entry_subject"
                    ),
                    models.Index(fields=["action", "-seq"], name="audit_entry_action"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Head",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, primary_key=True, serialize=False
                    ),
                ),
                ("seq", models.BigIntegerField(default=0)),
                ("hash", models.BinaryField()),
            ],
            options={
                "db_table": "audit_head",
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)), name="audit_head_is_one_row"
                    )
                ],
            },
        ),
    ]
