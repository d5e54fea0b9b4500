"""Sessions of people: until when one lasts, which are open, and ending one."""

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

# An open page asks for news by itself: that is not a person at work.
IDLE = timedelta(hours=12)
# After the sign-in, whatever was done meanwhile (OWASP ASVS 5.0, 7.3.2).
LONGEST = timedelta(days=14)
# What a session holds of its person, as ISO 8601 and text.
SIGNED_IN_AT = "signed_in_at"
AT_WORK = "at_work"
ADDRESS = "address"
# So many are looked through, the last used first; each takes 50 us to decode.
MOST = 5_000

SessionData = SessionBase | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSession:
    """One place where a person is signed in.

    `mark` names it on pages: its key would let in whoever reads it.
    """

    mark: str
    signed_in_at: datetime
    at_work_at: datetime
    address: str

    @classmethod
    def of(cls, key: str, data: SessionData) -> Self:
        return cls(
            mark=mark_of(key),
            signed_in_at=datetime.fromisoformat(data[SIGNED_IN_AT]),
            at_work_at=datetime.fromisoformat(data[AT_WORK]),
            address=data.get(ADDRESS, ""),
        )


def mark_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def begin(session: SessionBase, *, address: str, now: datetime) -> None:
    """Note in a session who has just signed in, from where and when."""
    session[SIGNED_IN_AT] = session[AT_WORK] = now.isoformat()
    session[ADDRESS] = address


def is_over(data: SessionData, *, now: datetime) -> bool:
    """Check whether its person was away for too long, or signed in too long ago."""
    signed_in, at_work = data.get(SIGNED_IN_AT), data.get(AT_WORK)
    if not signed_in or not at_work:
        return True
    return (
        now - datetime.fromisoformat(at_work) > IDLE
        or now - datetime.fromisoformat(signed_in) > LONGEST
    )


def decoded(text: str) -> dict[str, Any]:
    """Give what a row of a session holds; nothing where another secret signed it."""
    return Session(session_data=text).get_decoded()


def user_id_of(data: SessionData) -> int:
    """Name the person of a session; 0 where nobody is signed in."""
    return int(data.get(SESSION_KEY, 0))


def is_of(user: User, data: SessionData) -> bool:
    """Check that a session began after the person's sessions were ended last."""
    expected = user.get_session_auth_hash()
    return constant_time_compare(data.get(HASH_SESSION_KEY, ""), expected)


def open_sessions(
    users: Iterable[User], *, now: datetime
) -> dict[int, list[OpenSession]]:
    """Give where each person is signed in, the last at work first, by their id."""
    active = {user.pk: user for user in users if user.is_active}
    found: dict[int, list[OpenSession]] = {pk: [] for pk in active}
    for row in _of_late(now):
        data = row.get_decoded()
        user = active.get(user_id_of(data))
        if user and is_of(user, data) and not is_over(data, now=now):
            found[user.pk].append(OpenSession.of(row.session_key, data))
    for sessions in found.values():
        sessions.sort(key=lambda each: each.at_work_at, reverse=True)
    return found


def _of_late(now: datetime) -> QuerySet[Session]:
    """Select the sessions that were used lately enough to be open.

    No column says whose they are, but the one that is indexed, `expire_date`, moves on
    whenever their person is at work. Those that a provider vouched for end at a fixed
    time, which is no further away than the end of an idle one.
    """
    lifetime = timedelta(seconds=settings.SESSION_COOKIE_AGE)
    used_of_late = Q(expire_date__gt=now + lifetime - IDLE)
    of_provider = Q(expire_date__gt=now, expire_date__lte=now + IDLE)
    rows = Session.objects.filter(used_of_late | of_provider)
    return rows.order_by("-expire_date")[:MOST]


@transaction.atomic
def end_session(*, user: User, mark: str, actor: Actor, now: datetime) -> bool:
    """Sign a person out in one place; False where they are not signed in there."""
    rows = (row for row in _of_late(now) if mark_of(row.session_key) == mark)
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
    """Delete the rows of sessions that can be used no more; give their number."""
    number, _ = Session.objects.filter(expire_date__lte=now).delete()
    return number
