"""A producer's database with an outbox, and a broker in memory."""

from __future__ import annotations

import pytest

from apps.outbox import outbox_row_decisions
from tests.sdk.outbox_sweeping.conftest import outbox, outbox_database

__all__ = ["outbox", "outbox_database"]


@pytest.fixture(autouse=True)
def broker_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the broker in memory the address that it does not need.

    And give a busy machine the time to read rows.
    """
    monkeypatch.setenv("BROKER_NOWHERE", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(outbox_row_decisions, "READ_MILLISECONDS", "60000")
