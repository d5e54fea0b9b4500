"""Which deliveries of an endpoint are made one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from apps.brokers.adapter_contract import Header
from apps.redelivery.models import Endpoint

# An entry of an index has room for some 2,700 bytes.
_LONGEST = 255


def order_key_of(endpoint: Endpoint, headers: Iterable[Header]) -> bytes | None:
    """Return the value of the endpoint's order header, of a long one its digest."""
    if not endpoint.order_header:
        return None
    order_header = endpoint.order_header.lower().encode()
    key = next((value for name, value in headers if name.lower() == order_header), None)
    if key is None or len(key) <= _LONGEST:
        return key
    return sha256(key).digest()
