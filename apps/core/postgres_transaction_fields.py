"""Postgres types that Django has no field for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models

# Generic for the type checker only; Django's own class takes no parameter.
if TYPE_CHECKING:
    OpaqueField = models.Field[Any, Any]
else:
    OpaqueField = models.Field


class TransactionIdField(OpaqueField):
    """The id of the transaction that wrote a row (xid8); it never wraps around."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 - Django's signature
        """Return the Postgres type of a column of transaction ids."""
        return "xid8"


class SnapshotField(OpaqueField):
    """Which transactions had ended at some moment (pg_snapshot)."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 - Django's signature
        """Return the Postgres type of a column of snapshots."""
        return "pg_snapshot"


class CurrentTransaction(models.Func):
    function = "pg_current_xact_id"
    arity = 0
    output_field = TransactionIdField()


class CurrentSnapshot(models.Func):
    function = "pg_current_snapshot"
    arity = 0
    output_field = SnapshotField()
