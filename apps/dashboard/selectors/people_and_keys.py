"""The data of the pages of people, API keys and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from django.db.models import Q

from apps.audit.models import Entry
from apps.audit.services import Action
from apps.brokers.models import Topic
from apps.core.errors import Absent
from apps.team import second_factor, sessions
from apps.team.models import ApiKey, User
from apps.team.rights import ALL_TOPICS, Scope
from apps.team.sessions import OpenSession

MOST = 500
MOST_SESSIONS = 100
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows(Generic[Row]):
    """The first `MOST` rows of a list, and whether there are more."""

    rows: Sequence[Row]
    has_more: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonRow:
    user: User
    sessions: int
    has_second_factor: bool

    @property
    def state(self) -> str:
        """Return the word for the person's state: active or disabled."""
        return "active" if self.user.is_active else "disabled"


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRow:
    key: ApiKey
    state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnSession:
    """A session of the user; `is_this` marks the current one."""

    session: OpenSession
    is_this: bool


def people(*, now: datetime) -> Rows[PersonRow]:
    """List active people, then disabled ones, by name."""
    users = list(User.objects.order_by("-is_active", "username")[: MOST + 1])
    first = users[:MOST]
    open_sessions = sessions.open_sessions(first, now=now)
    having = second_factor.who_have_one(first)
    rows = [
        PersonRow(
            user=user,
            sessions=len(open_sessions.get(user.pk, [])),
            has_second_factor=user.pk in having,
        )
        for user in first
    ]
    return Rows(rows=rows, has_more=len(users) > MOST)


def person(user_id: int, *, now: datetime) -> PersonRow:
    """Load a person; raises Absent for an unknown id."""
    user = User.objects.filter(pk=user_id).first()
    if user is None:
        raise Absent("There is no such person here.")
    open_sessions = sessions.open_sessions([user], now=now)
    return PersonRow(
        user=user,
        sessions=len(open_sessions.get(user.pk, [])),
        has_second_factor=second_factor.is_set(user),
    )


def keys(*, now: datetime) -> Rows[KeyRow]:
    """List usable API keys, then ended ones, by name."""
    # In SQL, `expires_at <= now` is NULL for a key that never expires.
    is_expired = Q(expires_at__isnull=False, expires_at__lte=now)
    has_ended = Q(revoked_at__isnull=False) | is_expired
    ordered = ApiKey.objects.alias(has_ended=has_ended).order_by("has_ended", "name")
    first = list(ordered[: MOST + 1])
    rows = [KeyRow(key=key, state=key.state(now)) for key in first[:MOST]]
    return Rows(rows=rows, has_more=len(first) > MOST)


def key(key_id: int, *, now: datetime) -> KeyRow:
    """Load an API key; raises Absent for an unknown id."""
    api_key = ApiKey.objects.filter(pk=key_id).first()
    if api_key is None:
        raise Absent("There is no such key here.")
    return KeyRow(key=api_key, state=api_key.state(now))


def unmatched_patterns(key: ApiKey) -> list[str]:
    """List the patterns of an API key that match no topic yet."""
    return [
        pattern
        for pattern in key.topics
        if not Topic.objects.matching([pattern]).exists()
    ]


def revoked_by(key: ApiKey) -> str:
    """Return the actor who revoked an API key; "" if it was not revoked."""
    about = {"action": Action.KEY_REVOKED.value, "subject": f"api_key:{key.name}"}
    entries = Entry.objects.filter(**about).order_by("-seq")
    return entries.values_list("actor", flat=True).first() or ""


def sees_no_trail(key: ApiKey) -> bool:
    """Tell whether an API key has the audit's scope, but not all topics."""
    return Scope.AUDIT_READ in key.scopes and ALL_TOPICS[0] not in key.topics


def own_sessions(user: User, *, here: str, now: datetime) -> list[OwnSession]:
    """List a person's open sessions, the current one first.

    `here` is the current session's key.
    """
    mark = sessions.mark_of(here)
    open_sessions = sessions.open_sessions([user], now=now)[user.pk]
    rows = [OwnSession(session=one, is_this=one.mark == mark) for one in open_sessions]
    return sorted(rows, key=lambda row: not row.is_this)
