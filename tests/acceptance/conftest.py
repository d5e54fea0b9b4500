"""Tests of the whole product kill its processes."""

from __future__ import annotations

from tests.killed import files_of_killed_processes

__all__ = ["files_of_killed_processes"]
