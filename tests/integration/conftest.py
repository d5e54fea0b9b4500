"""Passwords without their usual rounds, plain static files, a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from tests.fast_password_hasher import ONE_ROUND
from tests.in_memory_queue_broker import Queues, adapted


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    with override_settings(PASSWORD_HASHERS=ONE_ROUND):
        yield


@pytest.fixture(scope="session")
def plain_static_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Serve static files under their plain names, from an existing folder."""
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}
    with override_settings(
        STORAGES=storages,
        STATIC_ROOT=tmp_path_factory.mktemp("static"),
        # Otherwise each new client would read all files.
        WHITENOISE_AUTOREFRESH=True,
    ):
        yield


@pytest.fixture
def broker() -> Iterator[Queues]:
    """Return a broker in memory, of a kind that the product has adopted."""
    queues = Queues()
    with adapted(queues):
        yield queues
