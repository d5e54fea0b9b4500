"""Reporters that send to a Poisonweb double."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.spool import Spool
from tests.sdk.fake_poisonweb_server import KEY, FakeServer


@pytest.fixture
def client(server: FakeServer) -> Client:
    return Client([server.url], KEY, timeout=60)


@pytest.fixture
def impatient(server: FakeServer) -> Client:
    """Return a client that gives up soon, and sends again what may have arrived."""
    return Client([server.url], KEY, timeout=1)


@pytest.fixture
def reporter(client: Client) -> Iterator[Reporter]:
    reporter = Reporter(client)
    yield reporter
    reporter.close(0.2)


@pytest.fixture
def spooling(client: Client, tmp_path: Path) -> Iterator[Reporter]:
    reporter = Reporter(client, spool=Spool(tmp_path))
    yield reporter
    reporter.close(0.2)
