"""Store what consumers, guards and lanes report."""

from __future__ import annotations
