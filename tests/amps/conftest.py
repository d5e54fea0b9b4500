"""An AMPS server and a Poisonweb on loopback, and the real client between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import AMPS
import pytest

from poisonguard.amps import BookmarkStore
from poisonguard.amps.mister_yuck import POISON_TOPIC
from tests.amps.fake_amps_server import Amps
from tests.sdk.fake_poisonweb_server import KEY, FakeServer, be_patient, running

NEVER = 3_600.0  # seconds: a test writes when it says so

Connect = Callable[..., Any]
Open = Callable[..., BookmarkStore]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def amps() -> Iterator[Amps]:
    with Amps(keys={POISON_TOPIC: "bookmark"}) as amps:
        yield amps


@pytest.fixture
def poisonweb() -> Iterator[FakeServer]:
    with running() as server:
        yield server


@pytest.fixture
def absorbed() -> list[BaseException]:
    """Return the list of exceptions that the client's listener gets."""
    return []


@pytest.fixture
def connect(amps: Amps, absorbed: list[BaseException]) -> Iterator[Connect]:
    """Return a function that creates an HA client, with or without a store."""
    clients: list[Any] = []

    def make(store: Any = None) -> Any:
        client = AMPS.HAClient("billing-1", no_store=True)
        clients.append(client)
        chooser = AMPS.DefaultServerChooser()
        chooser.add(amps.url)
        client.set_server_chooser(chooser)
        client.set_exception_listener(absorbed.append)
        if store is not None:
            client.set_bookmark_store(store)
        client.connect_and_logon()
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def store_of(poisonweb: FakeServer) -> Iterator[Open]:
    """Return a function that creates a bookmark store, killed after the test."""
    stores: list[BookmarkStore] = []

    def make(**changes: Any) -> BookmarkStore:
        arguments = {"client_name": "billing-1", "interval": NEVER, **changes}
        stores.append(BookmarkStore(poisonweb.url, KEY, **arguments))
        return stores[-1]

    yield make
    for store in stores:
        kill(store)


def kill(store: BookmarkStore) -> None:
    """End a store like a kill: it writes nothing more."""
    positions = store._positions
    positions._closed = "killed"
    positions._thread.end()
