"""On a busy machine the gateway takes its time to read keys and endpoints."""

from __future__ import annotations

import pytest

from apps.redelivery.gateway import key_and_endpoint_cache


@pytest.fixture(autouse=True)
def patient_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_and_endpoint_cache, "WAIT_SECONDS", 60.0)
