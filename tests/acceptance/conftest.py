"""Tests of the whole product kill its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.acceptance.product_celery_processes import beat, start_worker
from tests.acceptance.web_server_process import Web
from tests.tmpdir_for_killed_processes import files_of_killed_processes

__all__ = ["beat", "files_of_killed_processes", "start_worker"]

# Only the soak has the history of the repository, and the time.
collect_ignore = (
    []
    if "SOAK" in os.environ
    else [
        "test_other_release_compatibility.py",
        "test_rolling_upgrade.py",
        "test_upgrade_of_a_million.py",
    ]
)


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    web.start()
    yield web
    web.stop()
