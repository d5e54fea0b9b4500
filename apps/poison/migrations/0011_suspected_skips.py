"""Skips of messages that only one consumer failed on, while others may handle them."""

from __future__ import annotations

from django.db import migrations, models
from django.db.models import F, Q

from apps.core.schema_changes import AtOnce, LockTimeoutMigration

ENDED_BEFORE = ("removed", "expired", "passed")
ENDED_NOW = (*ENDED_BEFORE, "handled", "doubted")

# The code of before takes each skip for one that is to be applied.
FORGET_SUSPICIONS = """
WITH suspected AS (
    DELETE FROM poison_skip WHERE is_suspected AND removed_revision IS NULL
    RETURNING topic_id
), counted AS (
    SELECT topic_id, count(*) AS number FROM suspected GROUP BY topic_id
)
UPDATE poison_skip_list list SET automatic = list.automatic - counted.number
FROM counted WHERE counted.topic_id = list.topic_id;
UPDATE poison_skip SET because = 'expired' WHERE because IN ('handled', 'doubted');
"""


def ends_whole(reasons: tuple[str, ...]) -> models.CheckConstraint:
    return models.CheckConstraint(
        name="poison_skip_ends_whole",
        condition=Q(removed_revision=None, removed_at=None, because="")
        | Q(
            removed_revision__gt=F("revision"),
            removed_at__isnull=False,
            because__in=list(reasons),
        ),
    )


class Migration(LockTimeoutMigration):
    dependencies = [("poison", "0010_skips_by_topic")]

    operations = [
        AtOnce(
            [
                migrations.AddField(
                    model_name="skip",
                    name="is_suspected",
                    field=models.BooleanField(db_default=False, default=False),
                ),
                migrations.AddField(
                    model_name="skip",
                    name="firm_at",
                    field=models.DateTimeField(
                        null=True,
                        help_text="when it is suspected no more, unless something is heard",
                    ),
                ),
                migrations.RemoveConstraint(
                    model_name="skip", name="poison_skip_ends_whole"
                ),
                migrations.AddConstraint(
                    model_name="skip", constraint=ends_whole(ENDED_NOW)
                ),
                migrations.AddConstraint(
                    model_name="skip",
                    constraint=models.CheckConstraint(
                        name="poison_skip_suspected_is_automatic",
                        condition=Q(is_suspected=False, firm_at=None)
                        | Q(is_suspected=True, is_automatic=True),
                    ),
                ),
                migrations.AddIndex(
                    model_name="skip",
                    index=models.Index(
                        fields=["firm_at"],
                        name="poison_skip_suspected",
                        condition=Q(is_suspected=True, removed_revision=None),
                    ),
                ),
            ]
        ),
        migrations.RunSQL(migrations.RunSQL.noop, FORGET_SUSPICIONS),
    ]
