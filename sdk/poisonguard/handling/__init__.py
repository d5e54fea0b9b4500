"""Handling of messages: the hot path, the slow path, and a guard's lifecycle."""

from __future__ import annotations
