"""Tests of the whole product kill its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.acceptance.web import Web
from tests.files_of_killed_processes import files_of_killed_processes

__all__ = ["files_of_killed_processes"]

# Only the soak has the history of the repository, and the time.
collect_ignore = (
    []
    if "SOAK" in os.environ
    else [
        "test_other_release.py",
        "test_two_trees.py",
    ]
)


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    web.start()
    yield web
    web.stop()
