"""Communication with Poisonweb: HTTP, the skip stream, reports, the spool."""

from __future__ import annotations
