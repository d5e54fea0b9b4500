"""People who have signed in, and static files under their plain names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count

import pytest
from django.test import Client

from apps.core import clock
from apps.core.actor import Actor
from apps.team.rights import Role
from apps.team.services import create_user

SignIn = Callable[..., Client]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `now` be the present in this folder: pages show ages."""
    item.add_marker("present")


@pytest.fixture(autouse=True)
def slow_clock(now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass only when it is read: lanes live and ages stay.

    By the patch that tests use as well: of two patches of one name, the one that is
    undone first would be put back by the other.
    """
    moments = count(1)
    monkeypatch.setattr(
        clock, "now", lambda: now + next(moments) * timedelta(milliseconds=1)
    )


@pytest.fixture(autouse=True)
def static_files(plain_static_files: None) -> None:
    """Serve static files without collecting them."""


@pytest.fixture
def sign_in(db: None, now: datetime) -> SignIn:
    """Return a client that is signed in with a role."""

    def signed_in(role: Role = Role.OPERATOR, *, reads_bodies: bool = False) -> Client:
        user = create_user(
            username=f"{role}{reads_bodies}",
            password="correct horse",
            role=role,
            reads_bodies=reads_bodies,
            actor=Actor.system("test"),
            now=now,
        )
        client = Client()
        client.force_login(user)
        return client

    return signed_in


@pytest.fixture
def anna(sign_in: SignIn) -> Client:
    """Return the client of an operator who may read bodies."""
    return sign_in(reads_bodies=True)


@pytest.fixture
def admin(sign_in: SignIn) -> Client:
    return sign_in(Role.ADMIN)


@pytest.fixture
def ada(sign_in: SignIn) -> Client:
    """Return the client of an administrator who may read bodies."""
    return sign_in(Role.ADMIN, reads_bodies=True)
