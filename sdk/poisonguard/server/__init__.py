"""What talks to Poisonweb: HTTP, the stream of skips, reports, the spool."""

from __future__ import annotations
