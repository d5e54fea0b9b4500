"""Services of positions: what brokers report, and what consumers settle."""

from __future__ import annotations

from apps.bookmarks.services.positions_read_from_brokers import observe

__all__ = ["observe"]
