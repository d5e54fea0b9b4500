"""Kill consumers that hang, and restart consumers that died."""

from __future__ import annotations
