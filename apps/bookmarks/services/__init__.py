"""How far each consumer has read: what brokers say, and what consumers settle."""

from __future__ import annotations

from apps.bookmarks.services.observing import observe

__all__ = ["observe"]
