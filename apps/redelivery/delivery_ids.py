"""Ids of deliveries: UUIDs of version 7 (RFC 9562), in the order of their acceptance.

The 12 bits after the time count the ids of a process within a millisecond, so that the
deliveries that one process accepts keep their order.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REST = 2**80 - 1
_LATEST = 2**48 - 1
_MOST_IN_A_MILLISECOND = 2**12


class DeliveryIds:
    """Make ids, each greater than the one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Milliseconds since 1970, followed by the 12 bits of the counter.
        self._last = 0

    def new(self) -> uuid.UUID:
        """Return the next delivery id, a UUID of version 7."""
        with self._lock:
            now = time.time_ns() // 1_000_000 * _MOST_IN_A_MILLISECOND
            self._last = max(now, self._last + 1)
            milliseconds, count = divmod(self._last, _MOST_IN_A_MILLISECOND)
        random = secrets.randbits(62)
        return uuid.UUID(
            int=milliseconds << 80 | 0x7 << 76 | count << 64 | 0b10 << 62 | random
        )


new_delivery_id = DeliveryIds().new


def first_id_at(moment: datetime) -> uuid.UUID:
    """Return a lower bound: no delivery id of this moment, or a later one, is below."""
    return uuid.UUID(int=_milliseconds(moment) << 80)


def last_id_at(moment: datetime) -> uuid.UUID:
    """Return an upper bound: no delivery id of this moment, or an earlier, is above."""
    return uuid.UUID(int=_milliseconds(moment) << 80 | _REST)


def _milliseconds(moment: datetime) -> int:
    """Return the milliseconds that delivery ids (UUID 7) of a moment begin with."""
    return min(max((moment - _EPOCH) // timedelta(milliseconds=1), 0), _LATEST)
