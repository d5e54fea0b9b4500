"""A failure that stands for its repeats within a minute.

The columns are added by hand: Django would add a check, for which Postgres reads the
whole table while it is locked.
"""

from __future__ import annotations

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

from apps.core.schema_changes import LockTimeoutMigration

ADD = """
ALTER TABLE poison_failure ADD COLUMN folds boolean NOT NULL DEFAULT false,
    ADD COLUMN times integer NOT NULL DEFAULT 1,
    ADD COLUMN last_failed_at timestamptz
"""
# The code of before counts rows: each failure gets its own again, with the id of its
# report where that is kept.
UNFOLD = """
LOCK TABLE poison_failure IN SHARE ROW EXCLUSIVE MODE;
WITH more AS (
    SELECT failure.*, row_number() OVER (PARTITION BY poison_id ORDER BY id) AS number
    FROM poison_failure failure, generate_series(2, times) WHERE times > 1
), kept AS (
    SELECT poison_id, kept_id, row_number() OVER (PARTITION BY poison_id ORDER BY day)
           AS number
    FROM poison_folded_reports, unnest(reports) AS kept_id
)
INSERT INTO poison_failure (day, poison_id, problem_id, report_id, is_first, suspected,
    redrive, ambiguous, bookmark, cause, error_type, error_message, traceback,
    client_name, sub_id, host, handler_version, attempts, failures, crashes,
    dequeue_count, dequeue_count_source, first_failed_at, failed_at, failed_at_claimed,
    captured_at, captured_xid)
SELECT day, poison_id, problem_id, coalesce(kept_id, gen_random_uuid()), is_first,
    suspected, redrive, ambiguous, bookmark, cause, error_type, error_message, traceback, client_name,
    sub_id, host, handler_version, 1, failures, crashes, dequeue_count,
    dequeue_count_source, first_failed_at, failed_at, failed_at_claimed, captured_at,
    captured_xid
FROM more LEFT JOIN kept USING (poison_id, number);
UPDATE poison_failure SET attempts = attempts - (times - 1) WHERE times > 1;
ALTER TABLE poison_failure DROP COLUMN folds, DROP COLUMN times,
    DROP COLUMN last_failed_at;
"""

# A bucket's last row grows: with free space in its page it stays there.
CREATE = """
CREATE TABLE poison_folded_reports (
    poison_id bigint NOT NULL,
    bucket smallint NOT NULL,
    part integer NOT NULL,
    day date NOT NULL,
    reports uuid[] NOT NULL,
    PRIMARY KEY (poison_id, bucket, part)
) WITH (fillfactor = 70);
"""


class Migration(LockTimeoutMigration):
    dependencies = [("poison", "0015_counts_by_triggers")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(CREATE, "DROP TABLE poison_folded_reports"),
                migrations.RunSQL(ADD, UNFOLD),
            ],
            state_operations=[
                migrations.AddField(
                    model_name="failure",
                    name="folds",
                    field=models.BooleanField(db_default=False, default=False),
                ),
                migrations.AddField(
                    model_name="failure",
                    name="times",
                    field=models.IntegerField(
                        db_default=1,
                        default=1,
                        help_text="failures within a minute it stands for",
                    ),
                ),
                migrations.AddField(
                    model_name="failure",
                    name="last_failed_at",
                    field=models.DateTimeField(
                        help_text="the last of them, whose texts it has", null=True
                    ),
                ),
                migrations.CreateModel(
                    name="FoldedReports",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "poison",
                                "bucket",
                                "part",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        (
                            "bucket",
                            models.SmallIntegerField(help_text="of the report's id"),
                        ),
                        ("part", models.IntegerField()),
                        (
                            "day",
                            models.DateField(help_text="UTC day of the last capture"),
                        ),
                        (
                            "reports",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.UUIDField(), size=None
                            ),
                        ),
                        (
                            "poison",
                            models.ForeignKey(
                                db_constraint=False,
                                on_delete=django.db.models.deletion.CASCADE,
                                related_name="+",
                                to="poison.poison",
                            ),
                        ),
                    ],
                    options={"db_table": "poison_folded_reports"},
                ),
            ],
        ),
    ]
