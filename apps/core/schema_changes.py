"""What migrations need to lock their tables only for a moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import Migration
from django.db.migrations.operations import SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation
from django.db.migrations.operations.models import ModelOperation
from django.db.migrations.operations.special import RunPython
from django.db.migrations.state import ProjectState, StateApps
from psycopg.errors import DeadlockDetected, LockNotAvailable

# Who waits for a lock of a table blocks all others meanwhile, so it waits briefly; yet
# longer than `deadlock_timeout` (1 s), when Postgres ends an autovacuum in the way.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '1500ms'"
# In seconds: until then it asks again for a lock that is not to be had.
PATIENCE = 600.0


class LockTimeoutMigration(Migration):
    """A migration that gives up where it waits too long for a lock, back as well."""

    def apply(
        self,
        project_state: ProjectState,
        schema_editor: BaseDatabaseSchemaEditor,
        collect_sql: bool = False,  # noqa: FBT001, FBT002 - as Django has it
    ) -> ProjectState:
        """Limit the waits of the migration's transaction, then migrate."""
        schema_editor.execute(LOCK_TIMEOUT)
        return super().apply(project_state, schema_editor, collect_sql)

    def unapply(
        self,
        project_state: ProjectState,
        schema_editor: BaseDatabaseSchemaEditor,
        collect_sql: bool = False,  # noqa: FBT001, FBT002 - as Django has it
    ) -> ProjectState:
        """Limit the waits of the migration's transaction, then migrate back."""
        schema_editor.execute(LOCK_TIMEOUT)
        return super().unapply(project_state, schema_editor, collect_sql)


class AtOnce(SeparateDatabaseAndState):
    """Changes of a schema, whose statements follow each other at once.

    Django computes for longer before each statement than Postgres works on it, and from
    the first one on the table is locked until the migration ends. After each change it
    also builds the classes of all related models; here, after the last one only. So no
    change may need another one of the list, such as the new name of a field.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__(database_operations=operations, state_operations=operations)

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change the models; then build the classes of these and of related models."""
        apps = state.__dict__.pop("apps", None)  # without it Django builds none
        super().state_forwards(app_label, state)
        if apps is not None:
            state.__dict__["apps"] = apps
            names = {_model_of(change) for change in self.state_operations}
            state.reload_models([(app_label, name) for name in names], delay=False)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Compute all statements of a migration's operation before it executes them."""
        with _collected_statements(schema_editor) as collector:
            for change in self.database_operations:
                change.database_forwards(app_label, collector, from_state, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Compute all statements that undo a migration's operation; then execute."""
        with _collected_statements(schema_editor) as collector:
            for change in reversed(self.database_operations):
                change.database_backwards(app_label, collector, from_state, to_state)


def _model_of(change: Any) -> str:
    of_model = isinstance(change, ModelOperation)
    return str(change.name_lower if of_model else change.model_name_lower)


@contextmanager
def _collected_statements(
    editor: BaseDatabaseSchemaEditor,
) -> Iterator[BaseDatabaseSchemaEditor]:
    """Yield an editor that collects statements, which `editor` executes at the end."""
    with editor.connection.schema_editor(collect_sql=True, atomic=False) as collector:
        yield collector
    # What Django would do at the end, with more locks: foreign keys of new tables.
    deferred, editor.deferred_sql = editor.deferred_sql, []
    for statement in (*deferred, *collector.collected_sql):
        editor.execute(statement, params=None)


def patiently(
    editor: BaseDatabaseSchemaEditor, work: Callable[..., Any], *values: object
) -> Any:
    """Run a function in one transaction; again when it gets no table lock in time."""
    until = time.monotonic() + PATIENCE
    alias = editor.connection.alias
    while True:
        try:
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                cursor.execute(LOCK_TIMEOUT)
                return work(cursor, *values)
        except OperationalError as busy:
            if not _is_for_a_lock(busy) or time.monotonic() > until:
                raise
        time.sleep(random.uniform(0.2, 1))  # noqa: S311 - not for secrets


def migrate(*target: str) -> None:
    """Bring the tables to the newest migration, or an app's to the one named.

    The release before may be at work meanwhile: a migration that asked in vain for a
    lock is undone, and tried again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            call_command("migrate", *target, interactive=False, verbosity=0)
        except OperationalError as busy:
            if not _is_for_a_lock(busy) or time.monotonic() > until:
                raise
            time.sleep(1)
        else:
            return


def _is_for_a_lock(busy: OperationalError) -> bool:
    return isinstance(busy.__cause__, LockNotAvailable | DeadlockDetected)


def execute(cursor: Any, statement: str) -> None:
    """Execute a migration's SQL statement without parameters."""
    cursor.execute(statement)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignKey:
    """A constraint that a migration drops, where nothing is deleted that it guards.

    It comes back while others write: the rows that are there are checked afterwards.
    """

    name: str
    table: str
    column: str
    target: str

    def removal(self) -> RunPython:
        """Return the migration operation that drops this foreign key; undone, adds it.

        Its migration must have `atomic = False`.
        """
        return RunPython(self._drop, self._add)

    def _drop(self, _: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        drop = (
            f"{self._locks()} ALTER TABLE {self.table}"
            f" DROP CONSTRAINT IF EXISTS {self.name}"
        )
        patiently(editor, execute, drop)

    def _add(self, _: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
        add = (
            f"{self._locks()} ALTER TABLE {self.table}"
            f" DROP CONSTRAINT IF EXISTS {self.name},"
            f" ADD CONSTRAINT {self.name} FOREIGN KEY ({self.column})"
            f" REFERENCES {self.target} (id) DEFERRABLE INITIALLY DEFERRED NOT VALID"
        )
        check = f"ALTER TABLE {self.table} VALIDATE CONSTRAINT {self.name}"
        patiently(editor, execute, add)
        patiently(editor, execute, check)

    def _locks(self) -> str:
        """Return SQL that locks a foreign key's tables as writers do: first the target.

        `ALTER TABLE` locks them the other way round: it and a writer would wait for one
        another. It gives up before Postgres looks for that, and could end the writer.
        """
        return (
            f"LOCK TABLE {self.target} IN ACCESS EXCLUSIVE MODE;"
            " SET LOCAL lock_timeout = '500ms';"
            f" LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE;"
        )
