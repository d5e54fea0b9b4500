"""People who have signed in, and static files under their plain names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client, override_settings

from apps.core import clock
from apps.core.actor import Actor
from apps.team.rights import Role
from apps.team.services import create_user
from tests.passwords import ONE_ROUND

SignIn = Callable[..., Client]


@pytest.fixture
def now() -> datetime:
    """Use the present time: pages show ages."""
    return clock.now()


@pytest.fixture(autouse=True)
def plain_static_files(tmp_path: Path) -> Iterator[None]:
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}
    with override_settings(
        STORAGES=storages,
        STATIC_ROOT=tmp_path,
        # Otherwise each new client reads all files.
        WHITENOISE_AUTOREFRESH=True,
    ):
        yield


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    with override_settings(PASSWORD_HASHERS=ONE_ROUND):
        yield


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
