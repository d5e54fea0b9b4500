"""What `manage.py check --deploy` says beyond Django's own checks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004
from django.db import InterfaceError, OperationalError

from poisonweb import application_role

ID = "poisonweb.W001"
NOT_SECURE = "poisonweb.W002"


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


@register(Tags.security, deploy=True)
def is_behind_tls(**_: Any) -> list[CheckMessage]:
    """Say in one warning what makes cookies, redirects and HSTS those of HTTPS."""
    if settings.SESSION_COOKIE_SECURE:
        return []
    return [
        Warning(
            "Passwords and sessions travel unencrypted: it is not set up for HTTPS.",
            hint="Put a proxy that speaks TLS in front, and set POISONWEB_SECURE=1.",
            id=NOT_SECURE,
        )
    ]
