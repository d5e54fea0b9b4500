"""What the tests of the API share."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings


@pytest.fixture(scope="session", autouse=True)
def static_files() -> None:
    # Without the folder, the middleware that serves it warns in every client.
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
