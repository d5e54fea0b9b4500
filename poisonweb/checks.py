"""Checks of `manage.py check --deploy`, beside Django's own."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004
from django.db import InterfaceError, OperationalError

from poisonweb import database_role_rights

ID = "poisonweb.W001"
NOT_SECURE = "poisonweb.W002"


@register(Tags.security, deploy=True)
def application_owns_nothing(**_: Any) -> list[CheckMessage]:
    """Warn if our database role could change the audit trail; skip without Postgres."""
    try:
        owns = database_role_rights.owns_tables()
    except (OperationalError, InterfaceError):
        return []
    if not owns:
        return []
    return [
        Warning(
            "The database role of DATABASE_URL owns the tables: an attacker who takes "
            "over a process could rewrite the audit trail.",
            hint="Give the processes a role of their own: see 'A role that owns no "
            "table' in docs/operators.md.",
            id=ID,
        )
    ]


@register(Tags.security, deploy=True)
def is_behind_tls(**_: Any) -> list[CheckMessage]:
    """Warn once if cookies, redirects and HSTS of the web are not set for HTTPS."""
    if settings.SESSION_COOKIE_SECURE:
        return []
    return [
        Warning(
            "Passwords and sessions are sent unencrypted: HTTPS is not set up.",
            hint="Put a proxy that speaks TLS in front, and set POISONWEB_SECURE=1.",
            id=NOT_SECURE,
        )
    ]
