"""Web, worker and lanes of the release before may run beside this one for a while.

They know only `triage_item`. Triggers see to it that each message is in the hands of
one operation, whichever release confirmed it, and that a worker runs only operations
whose items lie where it looks for them.

Nothing here waits for a lock longer than a second, and whatever was done stays done: a
migration that was killed can begin again.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.state import StateApps

from apps.core.schema_changes import execute, patiently

# What tells the task that converts operations that there is something to do.
INDEX = """
CREATE INDEX IF NOT EXISTS triage_operation_to_convert ON triage_operation (id)
WHERE NOT layout = 2
"""

# A worker of the release before begins a run by raising `epoch`. It finds no row.
RUNS = """
CREATE OR REPLACE FUNCTION triage_operation_is_not_for_old_workers() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER triage_operation_not_for_old_workers
    BEFORE UPDATE OF epoch ON triage_operation FOR EACH ROW
    WHEN (OLD.layout <> 1 AND NEW.epoch <> OLD.epoch)
    EXECUTE FUNCTION triage_operation_is_not_for_old_workers();
"""

# A worker of the release before that takes the items of a preview stores them in its
# own table.
TAKES = """
CREATE OR REPLACE FUNCTION triage_operation_was_taken() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF EXISTS (SELECT FROM triage_item WHERE operation_id = OLD.id) THEN
        NEW.layout := 1;
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER triage_operation_taken_by_old_workers
    BEFORE UPDATE OF taken ON triage_operation FOR EACH ROW
    WHEN (OLD.layout = 2 AND NEW.taken AND NOT OLD.taken)
    EXECUTE FUNCTION triage_operation_was_taken();
"""

# Either release deletes old previews, and knows only its own tables of items.
PREVIEWS = """
CREATE OR REPLACE FUNCTION triage_operation_goes_with_its_items() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM triage_item WHERE operation_id = OLD.id;
    DELETE FROM triage_skipped_item WHERE operation_id = OLD.id;
    DELETE FROM triage_selected_item WHERE operation_id = OLD.id;
    RETURN OLD;
END $$;
CREATE OR REPLACE TRIGGER triage_operation_with_its_items
    BEFORE DELETE ON triage_operation FOR EACH ROW
    EXECUTE FUNCTION triage_operation_goes_with_its_items();
"""

# What the release before holds is a hold, too. What an operation of this release holds
# is skipped there, as it is when two operations of one release want the same message.
HOLDS = """
CREATE OR REPLACE FUNCTION triage_item_is_held_once() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    holder bigint;
BEGIN
    IF NOT NEW.held THEN
        DELETE FROM poison_hold
        WHERE poison_id = OLD.poison_id AND operation = OLD.operation_id;
        RETURN NEW;
    END IF;
    INSERT INTO poison_hold (poison_id, operation, n, topic_id)
    SELECT poison.id, operation.id, poison.redrives + 1,
           coalesce(operation.target_topic_id, poison.topic_id)
    FROM poison_poison poison, triage_operation operation
    WHERE poison.id = NEW.poison_id AND operation.id = NEW.operation_id
    ON CONFLICT (poison_id) DO NOTHING;
    IF NOT FOUND THEN
        SELECT operation INTO holder FROM poison_hold WHERE poison_id = NEW.poison_id;
        IF holder IS DISTINCT FROM NEW.operation_id THEN
            NEW.held := false;
            NEW.state := 'skipped';
            NEW.reason := coalesce('operation ' || holder, 'another operation')
                          || ' has it';
        END IF;
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER triage_item_held_once
    BEFORE UPDATE OF held ON triage_item FOR EACH ROW
    WHEN (OLD.held <> NEW.held)
    EXECUTE FUNCTION triage_item_is_held_once();
"""

# Web and lanes of the release before record answers, but know no windows to count them
# in. A session of this release says what it is (see DATABASES).
ANSWERS = """
CREATE OR REPLACE FUNCTION poison_redrive_is_counted() RETURNS trigger
LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    WITH own AS (
        SELECT DISTINCT own.operation, own.first FROM after CROSS JOIN LATERAL (
            SELECT operation, first FROM poison_window
            WHERE operation = after.operation AND first <= after.item
            ORDER BY first DESC LIMIT 1) own
    ), locked AS MATERIALIZED (
        SELECT operation, first FROM poison_window JOIN own USING (operation, first)
        ORDER BY operation, first FOR NO KEY UPDATE OF poison_window
    ), change AS (
        SELECT own.operation, own.first,
               count(*) FILTER (WHERE before.outcome = 'sent') AS sent,
               count(*) FILTER (WHERE before.outcome = 'moved') AS moved,
               count(*) FILTER (WHERE before.outcome = 'unknown') AS unknown,
               count(*) FILTER (WHERE after.outcome = 'confirmed')
               - count(*) FILTER (WHERE before.outcome = 'confirmed') AS confirmed,
               count(*) FILTER (WHERE after.outcome = 'recurred') AS recurred
        FROM after JOIN before USING (id) CROSS JOIN LATERAL (
            SELECT operation, first FROM poison_window
            WHERE operation = after.operation AND first <= after.item
            ORDER BY first DESC LIMIT 1) own
        WHERE before.outcome <> after.outcome
          AND after.outcome IN ('confirmed', 'recurred')
        GROUP BY own.operation, own.first
    )
    UPDATE poison_window SET sent = poison_window.sent - change.sent,
           moved = poison_window.moved - change.moved,
           unknown = poison_window.unknown - change.unknown,
           confirmed = poison_window.confirmed + change.confirmed,
           recurred = poison_window.recurred + change.recurred
    FROM locked JOIN change USING (operation, first)
    WHERE poison_window.operation = change.operation
      AND poison_window.first = change.first;
    -- It left open what no broker had answered for.
    UPDATE poison_poison SET state = 'confirmed', sent_at = after.sent_at
    FROM after JOIN before USING (id)
    WHERE poison_poison.id = after.poison_id AND poison_poison.redrives = after.n
      AND poison_poison.state = 'open' AND after.operation IS NOT NULL
      AND after.outcome = 'confirmed' AND before.outcome IN ('sending', 'unknown');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER poison_redrive_counted
    AFTER UPDATE ON poison_redrive REFERENCING OLD TABLE AS before NEW TABLE AS after
    FOR EACH STATEMENT
    WHEN (current_setting('poisonweb.release', true) IS DISTINCT FROM '2')
    EXECUTE FUNCTION poison_redrive_is_counted();
"""

# Rows that a worker is just releasing are left out: it would release no hold.
FILL = """
WITH held AS (
    SELECT poison_id, operation_id FROM triage_item
    WHERE held AND poison_id > %s
      AND NOT EXISTS (SELECT FROM poison_hold
                      WHERE poison_hold.poison_id = triage_item.poison_id)
    ORDER BY poison_id LIMIT 5000 FOR SHARE OF triage_item SKIP LOCKED
), filled AS (
    INSERT INTO poison_hold (poison_id, operation, n, topic_id)
    SELECT poison.id, operation.id, poison.redrives + 1,
           coalesce(operation.target_topic_id, poison.topic_id)
    FROM held JOIN poison_poison poison ON poison.id = held.poison_id
    JOIN triage_operation operation ON operation.id = held.operation_id
    ON CONFLICT (poison_id) DO NOTHING
)
SELECT max(poison_id) FROM held
"""
UNFILLED = """
SELECT EXISTS (SELECT FROM triage_item WHERE held AND NOT EXISTS (
    SELECT FROM poison_hold WHERE poison_hold.poison_id = triage_item.poison_id))
"""
BY_INDEX = """
SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off
"""

DECIDED = """
SELECT EXISTS (SELECT FROM triage_operation WHERE layout <> 1 AND state <> 'preview')
"""
# All that is still held then is held by items of the layout before.
UNDO = """
DELETE FROM triage_operation WHERE layout <> 1;
DROP TRIGGER IF EXISTS poison_redrive_counted ON poison_redrive;
DROP TRIGGER IF EXISTS triage_item_held_once ON triage_item;
DROP TRIGGER IF EXISTS triage_operation_with_its_items ON triage_operation;
DROP TRIGGER IF EXISTS triage_operation_taken_by_old_workers ON triage_operation;
DROP TRIGGER IF EXISTS triage_operation_not_for_old_workers ON triage_operation;
DROP FUNCTION IF EXISTS poison_redrive_is_counted;
DROP FUNCTION IF EXISTS triage_item_is_held_once;
DROP FUNCTION IF EXISTS triage_operation_goes_with_its_items;
DROP FUNCTION IF EXISTS triage_operation_was_taken;
DROP FUNCTION IF EXISTS triage_operation_is_not_for_old_workers;
DROP INDEX IF EXISTS triage_operation_to_convert;
DELETE FROM poison_hold;
"""


def prepare(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Create index and triggers, then a hold for each message that is held now."""
    for statement in (INDEX, RUNS, TAKES, PREVIEWS, HOLDS, ANSWERS):
        patiently(editor, execute, statement)
    while patiently(editor, ask, UNFILLED):
        last: int | None = 0
        while last is not None:
            last = patiently(editor, ask, FILL, last)


def give_up(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Drop what `prepare` made, if no operation would be lost to the release before."""
    require_nothing_lost(_, editor)
    patiently(editor, execute, f"SET CONSTRAINTS ALL IMMEDIATE; {UNDO}")


def require_nothing_lost(_: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """Raise IrreversibleError if the release before would lose operations."""
    if patiently(editor, ask, DECIDED):
        raise IrreversibleError(
            "There are operations of this release, or converted by it: the release "
            "before could not show, continue or undo them. Go on with this release, or "
            "restore the backup that was made before the upgrade."
        )


def ask(cursor: Any, query: str, *values: object) -> Any:
    """Return the one value that a query gives."""
    cursor.execute(BY_INDEX)
    cursor.execute(query, values)
    (value,) = cursor.fetchone()
    return value


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("poison", "0013_holds_and_windows"),
        ("triage", "0004_items_without_states"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(prepare, give_up)],
            state_operations=[
                migrations.AddIndex(
                    model_name="operation",
                    index=models.Index(
                        fields=["id"],
                        name="triage_operation_to_convert",
                        condition=~models.Q(layout=2),
                    ),
                )
            ],
        ),
    ]
