"""Wait for what is bound to come true."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(true: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
