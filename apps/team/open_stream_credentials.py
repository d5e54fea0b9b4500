"""Credentials of open streams, and statements that check whether they still hold.

Each statement checks the credentials of all open streams at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from apps.core.actor import Actor


class CredentialKind(StrEnum):
    KEY = "key"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Credential:
    """A key by its name, or a person's session by its own key."""

    kind: CredentialKind
    name: str

    @classmethod
    def of_key(cls, actor: Actor) -> Self:
        """Build an open stream's credential from the API key of its request."""
        return cls(CredentialKind.KEY, actor.name.removeprefix("key:"))

    @classmethod
    def of_session(cls, session_key: str) -> Self:
        """Build an open stream's credential from the session of its request."""
        return cls(CredentialKind.SESSION, session_key)


USABLE_KEYS = """
SELECT name FROM team_api_key
WHERE name = ANY(%(names)s) AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > %(now)s)
"""

SESSIONS = """
SELECT session_key, session_data FROM django_session
WHERE session_key = ANY(%(keys)s) AND expire_date > %(now)s
"""

ACCOUNTS = """
SELECT id, password, sessions_ended_at FROM team_user
WHERE id = ANY(%(ids)s) AND is_active
"""
