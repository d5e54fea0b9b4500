"""The only source of the current time; services take it as an argument."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the time in UTC."""
    return datetime.now(UTC)  # noqa: TID251 - this is the clock
