"""Classify errors of Postgres: unavailable, or a value refused."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError

# Data exception, integrity constraint violation, program limit exceeded (an index row,
# say); see the appendix of Postgres' manual on error codes.
REFUSALS = ("22", "23", "54")


def refuses_value(error: Exception) -> bool:
    """Tell whether a value caused the error, so that a retry would fail again.

    Decide by the SQLSTATE, not by Django's class: Django raises OperationalError for a
    value too long for an index, as for a server that is down. Psycopg refuses some
    values itself, without an SQLSTATE, as Python does with a ValueError.
    """
    state: str | None = getattr(error.__cause__, "sqlstate", None)
    if state is None:
        return not isinstance(error, OperationalError | InterfaceError)
    return state.startswith(REFUSALS)
