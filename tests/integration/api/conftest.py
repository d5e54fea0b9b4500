"""What the tests of the API share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from tests.passwords import ONE_ROUND


@pytest.fixture(scope="session", autouse=True)
def plain_static_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Serve static files under their plain names, from a folder that is there."""
    plain = "django.contrib.staticfiles.storage.StaticFilesStorage"
    storages = {**settings.STORAGES, "staticfiles": {"BACKEND": plain}}
    with override_settings(
        STORAGES=storages,
        STATIC_ROOT=tmp_path_factory.mktemp("static"),
        # Else each new client would read them all.
        WHITENOISE_AUTOREFRESH=True,
    ):
        yield


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    with override_settings(PASSWORD_HASHERS=ONE_ROUND):
        yield
