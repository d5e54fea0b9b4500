"""What `manage.py check --deploy` says beyond Django's own checks."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004
from django.db import InterfaceError, OperationalError

from poisonweb import application_role

ID = "poisonweb.W001"


@register(Tags.security, deploy=True)
def application_owns_nothing(**_: Any) -> list[CheckMessage]:
    """Warn where the processes could change the trail; a database away says nothing."""
    try:
        owns = application_role.owns_tables()
    except (OperationalError, InterfaceError):
        return []
    if not owns:
        return []
    return [
        Warning(
            "The database role of DATABASE_URL owns the tables: whoever takes over a "
            "process could rewrite the audit trail.",
            hint="Give the processes a role of their own: see 'A role that owns no "
            "table' in docs/operators.md.",
            id=ID,
        )
    ]
