"""Whether a request may be sent again although it may have arrived."""

from __future__ import annotations

from collections.abc import Iterable

from apps.brokers.adapter_contract import Header
from apps.redelivery.endpoint_and_delivery_choices import Repeatable
from apps.redelivery.models import Endpoint

# RFC 9110 9.2.2, less TRACE.
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
IDEMPOTENCY_KEY = b"idempotency-key"


def is_repeatable(
    endpoint: Endpoint, *, method: str, headers: Iterable[Header]
) -> bool:
    """Tell whether a request may be sent again although it may have arrived.

    The endpoint's setting decides, or the method and the caller's own idempotency key.
    """
    match Repeatable(endpoint.repeatable):
        case Repeatable.ALWAYS:
            return True
        case Repeatable.NEVER:
            return False
        case Repeatable.BY_METHOD:
            return method in IDEMPOTENT_METHODS or any(
                name.lower() == IDEMPOTENCY_KEY for name, _ in headers
            )
