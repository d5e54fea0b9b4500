"""People's sessions: how long they last, which are open, and how to end one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.crypto import constant_time_compare

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.team.models import User

# An open page polls by itself: that does not count as activity.
IDLE = timedelta(hours=12)
# After the sign-in, regardless of activity (OWASP ASVS 5.0, 7.3.2).
LONGEST = timedelta(days=14)
# The session's members: times as ISO 8601, and the address as text.
SIGNED_IN_AT = "signed_in_at"
AT_WORK = "at_work"
ADDRESS = "address"
# How many rows are examined, the last used first; each takes 50 us to decode.
MOST = 5_000

SessionData = SessionBase | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSession:
    """One place where a person is signed in.

    `mark` identifies it on pages: its key would let any reader in.
    """

    mark: str
    signed_in_at: datetime
    at_work_at: datetime
    address: str

    @classmethod
    def of(cls, key: str, data: SessionData) -> Self:
        """Read where and when a session began, and when it was last used."""
        return cls(
            mark=mark_of(key),
            signed_in_at=datetime.fromisoformat(data[SIGNED_IN_AT]),
            at_work_at=datetime.fromisoformat(data[AT_WORK]),
            address=data.get(ADDRESS, ""),
        )


def mark_of(key: str) -> str:
    """Hash the key of a session, to name it on pages without showing the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def begin(session: SessionBase, *, address: str, now: datetime) -> None:
    """Store in a new session when and from where its person signed in."""
    session[SIGNED_IN_AT] = session[AT_WORK] = now.isoformat()
    session[ADDRESS] = address


def is_over(data: SessionData, *, now: datetime) -> bool:
    """Tell whether a session's person was idle or signed in for too long."""
    signed_in, at_work = data.get(SIGNED_IN_AT), data.get(AT_WORK)
    if not signed_in or not at_work:
        return True
    return (
        now - datetime.fromisoformat(at_work) > IDLE
        or now - datetime.fromisoformat(signed_in) > LONGEST
    )


def decode(text: str) -> dict[str, Any]:
    """Decode a session's row; {} if it was signed with another secret."""
    return Session(session_data=text).get_decoded()


def user_id_of(data: SessionData) -> int:
    """Return the user id of a session; 0 if no person is signed in."""
    return int(data.get(SESSION_KEY, 0))


def is_of(user: User, data: SessionData) -> bool:
    """Tell whether a session began after its person's sessions were last ended."""
    expected = user.get_session_auth_hash()
    return constant_time_compare(data.get(HASH_SESSION_KEY, ""), expected)


def open_sessions(
    users: Iterable[User], *, now: datetime
) -> dict[int, list[OpenSession]]:
    """List each person's open sessions by user id, the last active first."""
    active = {user.pk: user for user in users if user.is_active}
    by_user: dict[int, list[OpenSession]] = {pk: [] for pk in active}
    for row in _recently_used(now):
        data = row.get_decoded()
        user = active.get(user_id_of(data))
        if user and is_of(user, data) and not is_over(data, now=now):
            by_user[user.pk].append(OpenSession.of(row.session_key, data))
    for sessions in by_user.values():
        sessions.sort(key=lambda each: each.at_work_at, reverse=True)
    return by_user


def _recently_used(now: datetime) -> QuerySet[Session]:
    """Select the sessions that were used recently enough to be open.

    No column names their person, but the indexed one, `expire_date`, moves forward with
    each activity. Sessions of an OpenID provider end at a fixed time, which is no later
    than the end of an idle one.
    """
    lifetime = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    recently_used = Q(expire_date__gt=now + lifetime - IDLE)
    of_provider = Q(expire_date__gt=now, expire_date__lte=now + IDLE)
    rows = Session.objects.filter(recently_used | of_provider)
    return rows.order_by("-expire_date")[:MOST]


@transaction.atomic
def end_session(*, user: User, mark: str, actor: Actor, now: datetime) -> bool:
    """End one session of a person; False if they are not signed in there."""
    rows = (row for row in _recently_used(now) if mark_of(row.session_key) == mark)
    keys = [row.pk for row in rows if user_id_of(row.get_decoded()) == user.pk]
    number, _ = Session.objects.filter(pk__in=keys).delete()
    if not number:
        return False
    audit.record(
        action=Action.SESSIONS_ENDED,
        subject=f"user:{user.username}",
        actor=actor,
        now=now,
        source="ui",
        detail={"sessions": number},
    )
    return True


def prune(*, now: datetime) -> int:
    """Delete expired sessions of people; return how many."""
    number, _ = Session.objects.filter(expire_date__lte=now).delete()
    return number
