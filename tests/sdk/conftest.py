"""Fixtures of the SDK tests: a Poisonweb double, and consumers that die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.consumer_processes import Consumers
from tests.sdk.fake_poisonweb_server import FakeServer, be_patient, running


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as server:
        yield server


@pytest.fixture
def consumers(tmp_path: Path) -> Consumers:
    return Consumers.under(tmp_path)
