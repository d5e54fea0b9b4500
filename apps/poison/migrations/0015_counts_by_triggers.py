"""Triggers keep the counts of poisons; what was there before them is counted once.

They run as the owner of the tables: a process of the release before has no rights on
the new ones.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from apps.core.schema_changes import execute, patiently

# Those that were given back to their dead-letter queue are counted apart, and so are
# open ones that came back after a requeue.
STATE = """CASE WHEN state = 'moved' AND moved_to_id = topic_id THEN 'given back'
               WHEN state = 'open' AND recurrences > 0 THEN 'came back'
               ELSE state END"""

# Every name is qualified, and pg_catalog comes first on the path: nothing that a caller
# creates can stand for what it means.
FUNCTION = """
CREATE OR REPLACE FUNCTION {schema}.poison_count_{event}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO {schema}.poison_count_change (problem_id, topic_id, state, number)
    SELECT problem_id, topic_id, state, sum(number) FROM (
        {rows}
    ) change GROUP BY 1, 2, 3 HAVING sum(number) <> 0;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION {schema}.poison_count_{event}() FROM PUBLIC;
CREATE OR REPLACE TRIGGER poison_counted_{event} AFTER {event} ON {schema}.poison_poison
    REFERENCING {tables} FOR EACH STATEMENT
    EXECUTE FUNCTION {schema}.poison_count_{event}();
"""
ADDED = f"SELECT problem_id, topic_id, {STATE} AS state, 1 AS number FROM after"  # noqa: S608
GONE = f"SELECT problem_id, topic_id, {STATE} AS state, -1 AS number FROM before"  # noqa: S608
EVENTS = {
    "insert": (ADDED, "NEW TABLE AS after"),
    "update": (
        f"{ADDED} UNION ALL {GONE}",
        "OLD TABLE AS before NEW TABLE AS after",
    ),
    "delete": (GONE, "OLD TABLE AS before"),
}

# One statement, so one moment. Whatever is not committed then adds as much to the
# poisons as to their changes, so the difference stays the same, and is added.
COUNT = f"""
INSERT INTO poison_count_change (problem_id, topic_id, state, number)
SELECT problem_id, topic_id, state, sum(number) FROM (
    SELECT problem_id, topic_id, {STATE} AS state, count(*) AS number
    FROM poison_poison GROUP BY 1, 2, 3
    UNION ALL SELECT problem_id, topic_id, state, -number FROM poison_count
    UNION ALL SELECT problem_id, topic_id, state, -number FROM poison_count_change
) one GROUP BY 1, 2, 3 HAVING sum(number) <> 0
"""  # noqa: S608 - made of our own names

UNDO = """
DROP TRIGGER IF EXISTS poison_counted_insert ON poison_poison;
DROP TRIGGER IF EXISTS poison_counted_update ON poison_poison;
DROP TRIGGER IF EXISTS poison_counted_delete ON poison_poison;
DROP FUNCTION IF EXISTS poison_count_insert;
DROP FUNCTION IF EXISTS poison_count_update;
DROP FUNCTION IF EXISTS poison_count_delete;
"""


def keep(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Create the triggers, then count what was there; again after a kill."""
    patiently(editor, create)
    patiently(editor, execute, COUNT)


def create(cursor: Any) -> None:
    """Create the triggers of all events; from then on all changes are counted."""
    cursor.execute("SELECT quote_ident(current_schema())")
    (schema,) = cursor.fetchone()
    for event, (rows, tables) in EVENTS.items():
        names = {"schema": schema, "event": event, "rows": rows, "tables": tables}
        cursor.execute(FUNCTION.format(**names))


def forget(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Drop the triggers; the tables go with the migration before."""
    patiently(editor, execute, UNDO)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("poison", "0014_counts")]

    operations = [migrations.RunPython(keep, forget)]
