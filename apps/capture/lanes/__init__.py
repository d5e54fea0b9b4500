"""Draining and observing dead-letter queues, a lane for each topic."""

from __future__ import annotations
