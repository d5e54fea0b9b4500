"""Ids of stream entries, `milliseconds-number`, as one number that orders them."""

from __future__ import annotations

SEQ_LIMIT = 2**63 - 2
# Below the milliseconds of an id, for the number that counts within one.
SEQ_BITS = 20


def seq_of(stream_id: bytes) -> int:
    """Order an id in one number: milliseconds, then the bits to count in one."""
    milliseconds, _, number = stream_id.partition(b"-")
    low = min(int(number or 0), (1 << SEQ_BITS) - 1)
    return min(int(milliseconds) << SEQ_BITS | low, SEQ_LIMIT)
