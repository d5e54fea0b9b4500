"""Lanes: each drains or observes the dead-letter queue of one topic."""

from __future__ import annotations
