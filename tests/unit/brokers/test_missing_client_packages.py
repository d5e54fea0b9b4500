"""A missing client is reported in one sentence; everything else works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

import pytest

from apps.brokers import adapters
from apps.core.errors import Unavailable
from poisonweb.embedded.set_up_venv import CLIENTS


class Blocking(MetaPathFinder):
    """Finder that hides one package, as if it were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == self._package or name.startswith(f"{self._package}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@pytest.fixture
def without(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Hide a kind's client, and forget the loaded adapters."""
    kind: str = request.param
    package = adapters.KINDS[kind].client.partition(".")[0]
    ours = f"{adapters.__name__}.{kind.partition('_')[0]}"
    for name in list(sys.modules):
        if name.partition(".")[0] == package or name.startswith(ours):
            monkeypatch.delitem(sys.modules, name)
    if hasattr(adapters, kind):
        # A failed import replaces the package here; restore it at the end.
        monkeypatch.setattr(adapters, kind, getattr(adapters, kind))
    monkeypatch.setattr(sys, "meta_path", [Blocking(package), *sys.meta_path])
    adapters.adapter.cache_clear()
    yield kind
    adapters.adapter.cache_clear()


@pytest.mark.parametrize("without", CLIENTS, indirect=True)
def test_the_error_of_a_missing_client_says_how_to_install_it(without: str) -> None:
    with pytest.raises(Unavailable) as raised:
        adapters.adapter(without)

    assert adapters.KINDS[without].title in str(raised.value)
    remedy = f"run pip install -r apps/brokers/requirements/{without}.txt"
    assert remedy in str(raised.value)
    assert adapters.missing_client(without) == str(raised.value)
    assert adapters.missing_client("redis_streams") == ""


@pytest.mark.parametrize("without", ["rabbitmq"], indirect=True)
def test_a_missing_client_does_not_affect_other_kinds(
    without: str,
) -> None:
    assert adapters.adapter("redis_streams").capabilities.max_message > 0


def test_a_missing_module_other_than_the_client_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        adapters.KINDS,
        "nowhere",
        adapters.BrokerKind(name="nowhere", title="Nowhere", client="x", url=""),
    )

    with pytest.raises(ModuleNotFoundError):
        adapters.adapter("nowhere")
