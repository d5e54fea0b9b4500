"""Kills consumers that hang, and restarts consumers that died."""

from __future__ import annotations
