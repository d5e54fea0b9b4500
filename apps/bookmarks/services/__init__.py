"""Services of positions: what brokers report, and what consumers settle."""

from __future__ import annotations

from apps.bookmarks.services.broker_position_storage import observe

__all__ = ["observe"]
