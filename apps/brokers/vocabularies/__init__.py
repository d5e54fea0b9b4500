"""How producers describe why a message became a dead letter, one module for each."""

from __future__ import annotations
