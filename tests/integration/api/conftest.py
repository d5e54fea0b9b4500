"""Fixtures of the API tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from tests.passwords import ONE_ROUND


@pytest.fixture(scope="session", autouse=True)
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


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    with override_settings(PASSWORD_HASHERS=ONE_ROUND):
        yield
