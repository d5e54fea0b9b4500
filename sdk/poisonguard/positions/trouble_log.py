"""Log problems that last."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

LOG_EVERY = 60.0  # seconds between log lines about the same trouble


class TroubleLog:
    """Log each problem at most once a minute; one is known by its words up to ":"."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}

    def log(self, line: str, *, level: int = logging.WARNING) -> None:
        """Log a trouble, unless one of its kind was logged within LOG_EVERY seconds."""
        kind, now = line.split(":", 1)[0], time.monotonic()
        if now - self._logged_at.get(kind, -LOG_EVERY) >= LOG_EVERY:
            self._logged_at[kind] = now
            log.log(level, "%s", line)
