"""Ids of stream entries, `milliseconds-number`, as one number that orders them."""

from __future__ import annotations

SEQ_LIMIT = 2**63 - 2
# The low bits count the entries within one millisecond.
SEQ_BITS = 20


def seq_of(stream_id: bytes) -> int:
    """Convert a Redis stream id to a position's number: milliseconds, then a count."""
    milliseconds, _, number = stream_id.partition(b"-")
    low = min(int(number or 0), (1 << SEQ_BITS) - 1)
    return min(int(milliseconds) << SEQ_BITS | low, SEQ_LIMIT)
