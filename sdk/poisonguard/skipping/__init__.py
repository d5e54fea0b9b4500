"""The skip list of a topic: its columns, its wire form and its rules."""

from __future__ import annotations
