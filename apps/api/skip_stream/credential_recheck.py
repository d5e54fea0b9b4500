"""Check whether the credentials of all readers of a stream are still valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg

from apps.team import open_stream_credentials, sessions
from apps.team.models import User
from apps.team.open_stream_credentials import Credential, CredentialKind

Session = psycopg.AsyncConnection[Any]


async def usable(
    session: Session, candidates: Collection[Credential], *, now: datetime
) -> set[Credential]:
    """Return the streams' credentials that are valid now."""
    names = {
        kind: [each.name for each in candidates if each.kind is kind]
        for kind in CredentialKind
    }
    keys = await _usable_keys(session, names[CredentialKind.KEY], now)
    signed_in = await _usable_sessions(session, names[CredentialKind.SESSION], now)
    return keys | signed_in


async def _usable_keys(
    session: Session, names: list[str], now: datetime
) -> set[Credential]:
    """Return those of the streams' API keys that are neither revoked nor expired."""
    if not names:
        return set()
    values = {"names": names, "now": now}
    rows = await session.execute(open_stream_credentials.USABLE_KEYS, values)
    return {Credential(CredentialKind.KEY, name) for (name,) in await rows.fetchall()}


async def _usable_sessions(
    session: Session, keys: list[str], now: datetime
) -> set[Credential]:
    """Return those of the streams' sessions that are open and of active people."""
    if not keys:
        return set()
    values = {"keys": keys, "now": now}
    rows = await session.execute(open_stream_credentials.SESSIONS, values)
    payloads = {key: sessions.decode(text) for key, text in await rows.fetchall()}
    users = await _users(session, payloads)
    return {
        Credential(CredentialKind.SESSION, key)
        for key, data in payloads.items()
        if (user := users.get(sessions.user_id_of(data))) is not None
        and sessions.is_of(user, data)
        and not sessions.is_over(data, now=now)
    }


async def _users(
    session: Session, payloads: Mapping[str, Mapping[str, Any]]
) -> dict[int, User]:
    """Load the people of the sessions that read skip streams, by id."""
    ids = sorted({sessions.user_id_of(data) for data in payloads.values()})
    rows = await session.execute(open_stream_credentials.ACCOUNTS, {"ids": ids})
    return {row[0]: _user(*row) for row in await rows.fetchall()}


def _user(pk: int, password: str, sessions_ended_at: datetime | None) -> User:
    """Build a User from the few columns that a check of their session needs."""
    # psycopg gives times in the session's time zone; Django expects UTC.
    ended = sessions_ended_at and sessions_ended_at.astimezone(UTC)
    return User(id=pk, password=password, sessions_ended_at=ended)
