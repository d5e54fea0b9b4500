"""Callers, the present as time of every test, and plain static files."""

from __future__ import annotations

import pytest

from apps.team.rights import Scope
from tests.integration.api.schema_checking_client import Caller, program


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `now` be the present in this folder: keys and sessions expire."""
    item.add_marker("present")


@pytest.fixture(autouse=True)
def static_files(plain_static_files: None) -> None:
    """Serve static files without collecting them."""


@pytest.fixture
def caller(db: None) -> Caller:
    """Give a caller with every scope."""
    return program()


@pytest.fixture
def operations_caller(db: None) -> Caller:
    return program(
        *(Scope.OPERATIONS_READ, Scope.OPERATIONS_WRITE),
        *(Scope.POISONS_READ, Scope.SKIPS_READ),
    )


@pytest.fixture
def admin(db: None) -> Caller:
    return program(Scope.BROKERS_READ, Scope.BROKERS_WRITE)
