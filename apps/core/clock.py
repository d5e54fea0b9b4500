"""The one place that asks what time it is; everything below takes it as an argument."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - this is the clock
