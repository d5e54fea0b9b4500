"""The keepers of positions: broker or consumer."""

from __future__ import annotations

from enum import StrEnum


class PositionSource(StrEnum):
    """Broker: it is only read. SDK: its consumer settles, and a person may move it."""

    BROKER = "broker"
    SDK = "sdk"
