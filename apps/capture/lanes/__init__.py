"""Lanes: drain or observe the dead-letter queue of each topic."""

from __future__ import annotations
