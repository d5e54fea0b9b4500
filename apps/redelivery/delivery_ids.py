"""Ids of deliveries: UUIDs of version 7 (RFC 9562), in the order of their acceptance.

The 12 bits after the time count the ids of a process within a millisecond, so that the
deliveries that one process accepts keep their order.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid

_MOST_IN_A_MILLISECOND = 2**12


class DeliveryIds:
    """Makes ids, each greater than the one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Milliseconds since 1970, followed by the 12 bits of the counter.
        self._last = 0

    def new(self) -> uuid.UUID:
        """Return the next id."""
        with self._lock:
            now = time.time_ns() // 1_000_000 * _MOST_IN_A_MILLISECOND
            self._last = max(now, self._last + 1)
            milliseconds, count = divmod(self._last, _MOST_IN_A_MILLISECOND)
        random = secrets.randbits(62)
        return uuid.UUID(
            int=milliseconds << 80 | 0x7 << 76 | count << 64 | 0b10 << 62 | random
        )


new_delivery_id = DeliveryIds().new
