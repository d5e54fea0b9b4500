"""What was given back to its dead-letter queue, and what was matched by its body."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("poison", "0006_skips")]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="ambiguous",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text=(
                    "others with the same body had been sent: it may be one of theirs"
                ),
            ),
        ),
        migrations.AddField(
            model_name="failure",
            name="dequeue_count_source",
            field=models.CharField(
                db_default="",
                default="",
                help_text=(
                    "broker, or policy: only so many deliveries lead to its queue"
                ),
                max_length=10,
            ),
        ),
        migrations.AddField(
            model_name="redrive",
            name="queue",
            field=models.TextField(
                db_default="",
                default="",
                help_text="the dead-letter queue that has it again",
            ),
        ),
        migrations.AddField(
            model_name="redrive",
            name="digest",
            field=models.BinaryField(
                help_text="of its body, where it bears no mark to be known by",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="redrive",
            index=models.Index(
                condition=models.Q(("digest__isnull", False)),
                fields=["topic", "digest"],
                name="poison_redrive_unmarked",
            ),
        ),
    ]
