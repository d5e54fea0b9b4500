"""Fixtures of the SDK tests: a Poisonweb double."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sdk.server import Server, running


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server
