"""The present time, since keys and sessions expire, and plain static files."""

from __future__ import annotations

from datetime import datetime

import pytest

from apps.core import clock


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture(autouse=True)
def static_files(plain_static_files: None) -> None:
    """Serve static files without collecting them."""
