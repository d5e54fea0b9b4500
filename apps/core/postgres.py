"""What an error of Postgres says: that it is away, or that it refuses a value."""

from __future__ import annotations

from django.db import InterfaceError, OperationalError

# Data exception, integrity constraint violation, program limit exceeded (an index row,
# say); see the appendix of Postgres' manual on error codes.
REFUSALS = ("22", "23", "54")


def refuses_value(error: Exception) -> bool:
    """Check whether what was sent is to blame, so that it would be refused again.

    By the SQLSTATE, since Django's classes do not tell: it calls a value that is too
    long for an index an OperationalError, like a server that is down. Psycopg refuses
    some values itself, without any SQLSTATE, as Python does with a ValueError.
    """
    state: str | None = getattr(error.__cause__, "sqlstate", None)
    if state is None:
        return not isinstance(error, OperationalError | InterfaceError)
    return state.startswith(REFUSALS)
