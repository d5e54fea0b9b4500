"""An index of the failures in which others are counted, for counts by topic.

No failure of an earlier day is one: only the partitions from today on get the index,
and those that will be made. It is built while they are written to.
"""

from __future__ import annotations

from django.db import migrations, models, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from apps.core.schema_changes import LOCK_TIMEOUT

ON_PARENT = """
CREATE INDEX IF NOT EXISTS poison_failure_folds
ON ONLY poison_failure (problem_id, failed_at) WHERE folds
"""
# With the index that a try before left, and whether it is complete and attached.
PARTITIONS = """
SELECT leaf.relname, made.indisvalid, inherited.inhrelid IS NOT NULL
FROM pg_partition_tree('poison_failure') tree JOIN pg_class leaf ON leaf.oid = relid
LEFT JOIN pg_index made
    ON made.indexrelid = to_regclass(quote_ident(leaf.relname || '_folds'))
LEFT JOIN pg_inherits inherited ON inherited.inhrelid = made.indexrelid
WHERE isleaf AND (relname = 'poison_failure_default' OR relname >=
      'poison_failure_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD'))
ORDER BY relname
"""


def build(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Build the index of each partition, and attach it to that of the table."""
    with transaction.atomic(using=editor.connection.alias):
        editor.execute(LOCK_TIMEOUT)
        editor.execute(ON_PARENT)
    with editor.connection.cursor() as cursor:
        cursor.execute(PARTITIONS)
        partitions = cursor.fetchall()
    for name, is_valid, is_attached in partitions:
        if is_attached:
            continue
        index = editor.quote_name(f"{name}_folds")
        if is_valid is False:
            editor.execute(f"DROP INDEX CONCURRENTLY {index}")
        if not is_valid:
            editor.execute(
                f"CREATE INDEX CONCURRENTLY {index} ON {editor.quote_name(name)}"
                " (problem_id, failed_at) WHERE folds"
            )
        with transaction.atomic(using=editor.connection.alias):
            editor.execute(LOCK_TIMEOUT)
            editor.execute(f"ALTER INDEX poison_failure_folds ATTACH PARTITION {index}")


def drop(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the index of the table, and those of its partitions with it."""
    with transaction.atomic(using=editor.connection.alias):
        editor.execute(LOCK_TIMEOUT)
        editor.execute("DROP INDEX IF EXISTS poison_failure_folds")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("poison", "0016_folded_failures")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(build, drop)],
            state_operations=[
                migrations.AddIndex(
                    model_name="failure",
                    index=models.Index(
                        condition=models.Q(("folds", True)),
                        fields=["problem", "failed_at"],
                        name="poison_failure_folds",
                    ),
                ),
            ],
        ),
    ]
