"""The present as time of every test, and plain static files."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `now` be the present in this folder: keys and sessions expire."""
    item.add_marker("present")


@pytest.fixture(autouse=True)
def static_files(plain_static_files: None) -> None:
    """Serve static files without collecting them."""
