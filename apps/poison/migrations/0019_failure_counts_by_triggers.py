"""Triggers count failures; those of the last day that were there are counted once.

They run as the owner of the tables: a process of the release before has no rights on
the new ones.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from apps.core.schema_changes import execute, patiently

# Every name is qualified, and pg_catalog comes first on the path: nothing that a caller
# creates can stand for what it means.
FUNCTION = """
CREATE OR REPLACE FUNCTION {schema}.poison_failure_count_{event}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO {schema}.poison_failure_count_change (problem_id, begins_at, number)
    SELECT problem_id, date_bin('10 minutes', failed_at, 'epoch'), sum(number)
    FROM ({rows}) change GROUP BY 1, 2 HAVING sum(number) <> 0;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {schema}.poison_failure_count_{event}() FROM PUBLIC;
CREATE OR REPLACE TRIGGER poison_failures_counted_{event}
    AFTER {event} ON {schema}.poison_failure
    REFERENCING {tables} FOR EACH STATEMENT
    EXECUTE FUNCTION {schema}.poison_failure_count_{event}();
"""
ADDED = "SELECT problem_id, failed_at, times AS number FROM after"
GONE = "SELECT problem_id, failed_at, -times AS number FROM before"
EVENTS = {
    "insert": (ADDED, "NEW TABLE AS after"),
    "update": (
        f"{ADDED} UNION ALL {GONE}",
        "OLD TABLE AS before NEW TABLE AS after",
    ),
    "delete": (GONE, "OLD TABLE AS before"),
}

# One statement, so one moment. Whatever is not committed then adds as much to the
# failures as to their changes, so the difference stays the same, and is added. It reads
# an index without the day, so that partitions are named; see `failure_count_gathering`.
PARTITIONS = """
SELECT relid::regclass::text FROM pg_partition_tree('poison_failure')
WHERE isleaf AND relid::regclass::text >= 'poison_failure_'
      || to_char(now() AT TIME ZONE 'UTC' - interval '2 days', 'YYYYMMDD')
"""
FAILURES = """
SELECT problem_id, failed_at, 1 AS number FROM {name}
UNION ALL SELECT problem_id, failed_at, times - 1 FROM {name} WHERE folds
"""
COUNT = """
INSERT INTO poison_failure_count_change (problem_id, begins_at, number)
SELECT problem_id, begins_at, sum(number) FROM (
    SELECT problem_id, date_bin('10 minutes', failed_at, 'epoch') AS begins_at, number
    FROM ({failures}) failure
    WHERE failed_at >= now() - interval '25 hours'
    UNION ALL SELECT problem_id, begins_at, -number FROM poison_failure_count
    WHERE problem_id <> 0
    UNION ALL SELECT problem_id, begins_at, -number FROM poison_failure_count_change
) one
WHERE begins_at >= now() - interval '25 hours'
GROUP BY 1, 2 HAVING sum(number) <> 0
"""

UNDO = """
DROP TRIGGER IF EXISTS poison_failures_counted_insert ON poison_failure;
DROP TRIGGER IF EXISTS poison_failures_counted_update ON poison_failure;
DROP TRIGGER IF EXISTS poison_failures_counted_delete ON poison_failure;
DROP FUNCTION IF EXISTS poison_failure_count_insert;
DROP FUNCTION IF EXISTS poison_failure_count_update;
DROP FUNCTION IF EXISTS poison_failure_count_delete;
"""


def keep(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Create the triggers, then count what was there; again after a kill."""
    patiently(editor, create)
    patiently(editor, count)


def create(cursor: Any) -> None:
    """Create the triggers of all events; from then on all changes are counted."""
    cursor.execute("SELECT quote_ident(current_schema())")
    (schema,) = cursor.fetchone()
    for event, (rows, tables) in EVENTS.items():
        names = {"schema": schema, "event": event, "rows": rows, "tables": tables}
        cursor.execute(FUNCTION.format(**names))


def count(cursor: Any) -> None:
    """Count the failures of the last day that no trigger has counted."""
    cursor.execute(PARTITIONS)
    names = [name for (name,) in cursor.fetchall()]
    failures = " UNION ALL ".join(FAILURES.format(name=name) for name in names)
    cursor.execute(COUNT.format(failures=failures))


def forget(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the triggers; the tables go with the migration before."""
    patiently(editor, execute, UNDO)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("poison", "0018_failure_counts")]

    operations = [migrations.RunPython(keep, forget)]
