"""What the examples of requests and answers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apps.brokers.adapters import KINDS

Value = Mapping[str, object]

RAMP: Final[Value] = {
    "steps": [1, 5, 20, 100],
    "confirmed": 95,
    "came_back": 0,
    "wait": 300,
}
AT: Final = "2026-11-20T09:30:00Z"
LATER: Final = "2026-11-20T09:31:00Z"
REPORT: Final = "5b0a8b8e-6f0d-4c55-9c55-2d7a1a1f0a11"
REDRIVE: Final = "0d7a8a52-3f25-4b43-8a10-7c3f0b4a9d5e"
DELIVERY_ID: Final = "019a9f5c-2c00-7000-8000-2d7a1a1f0a11"
PREVIEWED: Final = "2f1c9a64-8a3b-4d5e-9f60-1b2c3d4e5f60"
SHA_256: Final = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
HEADER: Final = f"{REDRIVE}.Zm9yIGFuIGV4YW1wbGU"
# Only an adapter knows the name of its kind.
KIND: Final = next(iter(KINDS))
CONSUMER: Final[Value] = {
    "topic": "orders",
    "consumer_group": "billing",
    "client_name": "billing-1",
}

# Examples by their names.
Examples = Mapping[str, Value | str]


def only(value: Value | str) -> Examples:
    return {"example": value}
