"""Redrive ids: packed from what they stand for, so that an id leads back to it.

A UUID of version 8 (RFC 9562, section 5.8): 48 bits of the operation, 32 of the item's
number in it, and 42 of n, the number of the redrive among those of its poison.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

_N_BITS = 42
_ITEM_BITS = 32
_VERSION = 8 << 76
_VARIANT = 0b10 << 62
_LOW = (1 << 62) - 1


class RedriveKey(NamedTuple):
    """What a redrive id stands for."""

    operation: int
    item: int
    n: int


def pack(operation: int, item: int, n: int) -> uuid.UUID:
    """Pack an operation, its item's number and n into a redrive id, a UUID.

    So each copy of a redriven message has the same id.
    """
    rest = item << _N_BITS | n
    return uuid.UUID(
        int=operation << 80 | _VERSION | rest >> 62 << 64 | _VARIANT | rest & _LOW
    )


def unpack(redrive: uuid.UUID) -> RedriveKey | None:
    """Unpack a redrive id, a UUID, into its operation, item and n.

    It is None for an id that is not ours.
    """
    if redrive.version != 8:  # earlier releases drew them at random
        return None
    value = redrive.int
    rest = (value >> 64 & 0xFFF) << 62 | value & _LOW
    return RedriveKey(value >> 80, rest >> _N_BITS, rest & (1 << _N_BITS) - 1)
