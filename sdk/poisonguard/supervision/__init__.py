"""Ending a consumer that hangs, and starting one again that died."""

from __future__ import annotations
