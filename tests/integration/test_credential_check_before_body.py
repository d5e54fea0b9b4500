"""A sender is known by a usable key or by a person's session."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore

from apps.core.actor import Actor
from apps.team import credential_check_before_body, services, sessions
from apps.team.models import ApiKey, User
from apps.team.rights import Role, Scope

pytestmark = [pytest.mark.django_db, pytest.mark.present]

ADMIN = Actor.user("ada")


@pytest.fixture
def secret(now: datetime) -> str:
    new_key = services.create_api_key(
        name="billing", scopes=[Scope.CAPTURE_WRITE], actor=ADMIN, now=now
    )
    return new_key.secret


@pytest.fixture
def user(now: datetime) -> User:
    return services.create_user(
        username="anna",
        password="correct horse",
        role=Role.VIEWER,
        reads_bodies=False,
        actor=ADMIN,
        now=now,
    )


def with_key(secret: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {secret}".encode()}


def session_of(user: User, now: datetime) -> dict[bytes, bytes]:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "apps.team.backends.PasswordBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    sessions.begin(session, address="192.0.2.1", now=now)
    session.create()
    return {b"cookie": f"other=1; pw_session={session.session_key}".encode()}


def test_a_key_is_known_until_it_ends(secret: str, now: datetime) -> None:
    before = credential_check_before_body.is_known(with_key(secret))

    ApiKey.objects.update(expires_at=now - timedelta(seconds=1))
    expired = credential_check_before_body.is_known(with_key(secret))
    ApiKey.objects.update(expires_at=None, revoked_at=now)
    revoked = credential_check_before_body.is_known(with_key(secret))

    assert (before, expired, revoked) == (True, False, False)


def test_a_person_is_known_while_signed_in(user: User, now: datetime) -> None:
    headers = session_of(user, now)
    before = credential_check_before_body.is_known(headers)

    User.objects.update(is_active=False)
    disabled = credential_check_before_body.is_known(headers)
    user.set_password("another horse")
    user.is_active = True
    user.save()
    changed = credential_check_before_body.is_known(headers)

    assert (before, disabled, changed) == (True, False, False)


def test_a_person_is_unknown_when_the_session_is_over(
    user: User, now: datetime
) -> None:
    before = now - sessions.IDLE

    before_the_end = credential_check_before_body.is_known(
        session_of(user, before + timedelta(minutes=1))
    )
    over = credential_check_before_body.is_known(
        session_of(user, before - timedelta(minutes=1))
    )

    assert (before_the_end, over) == (True, False)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer \xff\xfe"},
        {b"authorization": b"Basic YTpi"},
        {b"cookie": b"pw_session="},
        {b"cookie": b"pw_session=" + b"x" * 5_000},
        {b"cookie": b"pw_session=\xff\x00; ="},
    ],
)
def test_other_senders_are_unknown(headers: dict[bytes, bytes]) -> None:
    assert not credential_check_before_body.is_known(headers)
