"""Create and change people and API keys, and recognise keys."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import Q

from apps.audit import services as audit
from apps.audit.services import Action
from apps.core.actor import Actor
from apps.core.errors import Invalid, Refused
from apps.core.text_cleaning import is_name, resembles_system_name
from apps.team.models import ApiKey, User
from apps.team.rights import ALL_TOPICS, Role, Scope

LAST_USE_IS_EXACT_TO = timedelta(minutes=1)
PREFIX_LENGTH = 8
NAME_LIMIT = 100
USERNAME_LIMIT = 150
PATTERN_LIMIT = 255
MOST_PATTERNS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    """A new key with its secret, shown once: only its SHA-256 is stored."""

    key: ApiKey
    secret: str


@transaction.atomic
def create_api_key(
    *,
    name: str,
    scopes: Sequence[str],
    topics: Sequence[str] = ALL_TOPICS,
    expires_at: datetime | None = None,
    actor: Actor,
    now: datetime,
) -> NewKey:
    """Create an API key; raises Invalid for a used name, bad scope or topic."""
    unknown = sorted(set(scopes) - set(Scope))
    if unknown or not scopes:
        raise Invalid("scope", f"use some of {', '.join(Scope)}")
    _check_name_of_key(name)
    if not 0 < len(topics) <= MOST_PATTERNS or not all(map(_is_pattern, topics)):
        remedy = f"give 1 to {MOST_PATTERNS} names or patterns of topics, each of up to"
        raise Invalid("topics", f"{remedy} {PATTERN_LIMIT} characters that can be seen")
    secret = f"pw_{settings.POISONWEB_ENVIRONMENT}_{secrets.token_urlsafe(32)}"
    start = len(f"pw_{settings.POISONWEB_ENVIRONMENT}_") + PREFIX_LENGTH
    key = ApiKey.objects.create(
        name=name,
        prefix=secret[:start],
        digest=digest_of(secret),
        scopes=sorted(set(scopes)),
        topics=list(topics),
        created_at=now,
        created_by=str(actor),
        expires_at=expires_at,
    )
    _audit_change(
        action=Action.KEY_CREATED,
        subject=f"api_key:{name}",
        actor=actor,
        now=now,
        detail={
            "scopes": key.scopes,
            "topics": key.topics,
            "expires_at": expires_at and expires_at.isoformat(timespec="seconds"),
        },
    )
    return NewKey(key=key, secret=secret)


@transaction.atomic
def revoke_api_key(*, name: str, actor: Actor, now: datetime) -> bool:
    """End an API key at once; False if it does not exist or has ended already."""
    revoked = ApiKey.objects.filter(name=name, revoked_at=None).update(revoked_at=now)
    if not revoked:
        return False
    _audit_change(
        action=Action.KEY_REVOKED, subject=f"api_key:{name}", actor=actor, now=now
    )
    return True


def _check_name_of_key(name: str) -> None:
    """Raise Invalid for an unusable name of an API key, or one in use."""
    if not is_name(name, limit=NAME_LIMIT):
        remedy = f"give up to {NAME_LIMIT} characters that can be seen"
        raise Invalid("name", f"{remedy}, without a blank at either end")
    refuse_system_like_name("name", name)
    other = ApiKey.objects.filter(name=name).first()
    if other is not None:
        revoked = ", though it is revoked" if other.revoked_at else ""
        remedy = f"there is a key called {name} already{revoked}: choose another name"
        raise Invalid("name", f"{remedy}; the trail knows each by its own")


def refuse_system_like_name(field: str, name: str) -> None:
    """Raise Invalid for a user's or key's name that would look like Poisonweb's."""
    if resembles_system_name(name):
        remedy = "choose another name: entries of the trail that Poisonweb writes"
        raise Invalid(field, f"{remedy} itself begin like this one")


def _is_pattern(text: str) -> bool:
    """Tell whether a text can be a pattern of topics."""
    return is_name(text, limit=PATTERN_LIMIT)


# Runs with each request, so it is plain SQL: the ORM would take longer than the rest of
# a consumer's request. A key's other columns are deferred.
_NEEDED = ("id", "name", "scopes", "topics", "last_used_at")
_USABLE = f"""
SELECT {", ".join(_NEEDED)} FROM team_api_key
WHERE digest = %(digest)s AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > %(now)s)
"""  # noqa: S608 - all of it is ours


def recognise(*, secret: str, now: datetime) -> ApiKey | None:
    """Return the usable API key of a secret, or None; store when it was used."""
    with connection.cursor() as cursor:
        cursor.execute(_USABLE, {"digest": digest_of(secret), "now": now})
        row = cursor.fetchone()
    if row is None:
        return None
    key = ApiKey.from_db(connection.alias, _NEEDED, row)
    stale = now - LAST_USE_IS_EXACT_TO
    # One write a minute, not one a request.
    if key.last_used_at is None or key.last_used_at < stale:
        ApiKey.objects.filter(pk=key.pk).update(last_used_at=now)
    return key


def usable_keys(*, now: datetime) -> list[ApiKey]:
    """List all API keys that can be used, with what recognises their secrets."""
    unexpired = Q(expires_at=None) | Q(expires_at__gt=now)
    keys = ApiKey.objects.filter(unexpired, revoked_at=None)
    return list(keys.only("name", "digest", "scopes", "topics", "expires_at"))


def note_use(*, names: Iterable[str], now: datetime) -> None:
    """Store when API keys were last used, where the stored time is a minute old."""
    stale = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USE_IS_EXACT_TO)
    ApiKey.objects.filter(stale, name__in=names).update(last_used_at=now)


@transaction.atomic
def create_user(
    *,
    username: str,
    password: str,
    role: Role,
    reads_bodies: bool,
    actor: Actor,
    now: datetime,
) -> User:
    """Add a person; raises Invalid for a name or a password that cannot be used.

    Names that differ only in capital letters count as equal.
    """
    if not is_name(username, limit=USERNAME_LIMIT):
        remedy = f"give up to {USERNAME_LIMIT} characters that can be seen"
        raise Invalid("username", f"{remedy}, without a blank at either end")
    refuse_system_like_name("username", username)
    if User.objects.filter(username__iexact=username).exists():
        raise Invalid("username", f"there is already a person called {username}")
    _check_password(password, User(username=username))
    user = User.objects.create_user(
        username=username,
        password=password,
        role=role.value,
        reads_bodies=reads_bodies,
    )
    _audit_change(
        action=Action.USER_CREATED,
        subject=f"user:{username}",
        actor=actor,
        now=now,
        detail={"role": role.value, "reads_bodies": reads_bodies},
    )
    return user


@transaction.atomic
def set_password(*, user: User, password: str, actor: Actor, now: datetime) -> None:
    """Change a person's password, and end all of their sessions.

    Raises Invalid for a password that is easily guessed.
    """
    _check_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    _audit_change(
        action=Action.PASSWORD_SET,
        subject=f"user:{user.username}",
        actor=actor,
        now=now,
    )


@transaction.atomic
def alter_user(
    *,
    username: str,
    role: Role | None = None,
    reads_bodies: bool | None = None,
    is_active: bool | None = None,
    may_leave_no_admin: bool = False,
    actor: Actor,
    now: datetime,
) -> User:
    """Change the given rights of a person; disabling signs them out at once.

    Raises Invalid for an unknown name, and Refused if no admin would be left, unless
    `may_leave_no_admin`.
    """
    user = _lock_user(username)
    changes = {"role": role, "reads_bodies": reads_bodies, "is_active": is_active}
    before = {name: getattr(user, name) for name in changes}
    after = {name: before[name] if v is None else v for name, v in changes.items()}
    if after == before:
        return user
    for name, value in after.items():
        setattr(user, name, str(value) if name == "role" else value)
    if not user.is_active:
        user.sessions_ended_at = now  # otherwise enabling would sign them in again
    user.save(update_fields=[*after, "sessions_ended_at"])
    active_admins = User.objects.filter(role=Role.ADMIN, is_active=True)
    is_admin = before["role"] == Role.ADMIN and not may_leave_no_admin
    if is_admin and not active_admins.exists():
        raise Refused(f"{username} is the last admin: make another one first.")
    _audit_change(
        action=Action.USER_ALTERED,
        subject=f"user:{username}",
        actor=actor,
        now=now,
        detail={"before": before, "after": after},
    )
    return user


@transaction.atomic
def end_sessions(*, username: str, actor: Actor, now: datetime) -> User:
    """Sign a person out everywhere from now on; return the user."""
    user = _lock_user(username)
    user.sessions_ended_at = now
    user.save(update_fields=["sessions_ended_at"])
    _audit_change(
        action=Action.SESSIONS_ENDED,
        subject=f"user:{username}",
        actor=actor,
        now=now,
    )
    return user


def _audit_change(
    *,
    action: Action,
    subject: str,
    actor: Actor,
    now: datetime,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append a change of a person or an API key to the audit."""
    # People act on pages only, and all other actors by a command.
    source = "ui" if actor.is_person else "system"
    audit.record(
        action=action,
        subject=subject,
        actor=actor,
        now=now,
        source=source,
        detail=detail,
    )


def _check_password(password: str, user: User) -> None:
    """Raise Invalid for a password that is too weak."""
    try:
        validate_password(password, user)
    except ValidationError as weak:
        raise Invalid("password", " ".join(weak.messages)) from None


def _lock_user(username: str) -> User:
    """Lock all admins' rows and the user's; raise Invalid for an unknown name."""
    # Lock all admins, so that two concurrent changes cannot leave none.
    admins = User.objects.select_for_update().filter(role=Role.ADMIN).order_by("pk")
    list(admins.values_list("pk"))
    user = User.objects.select_for_update().filter(username=username).first()
    if user is None:
        raise Invalid("username", f"there is no person {username}")
    return user


def digest_of(secret: str) -> bytes:
    """Hash the secret of an API key, as it is stored."""
    # The secret is 256 random bits: a slow hash would not protect it better.
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
