"""What becomes of one message: the hot path, all else, and a guard's life."""

from __future__ import annotations
