"""One call of a back end for a delivery, and what it gave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.call_and_delivery_dataclasses import (
    KEPT_ANSWER,
    CallResult,
    ClaimedDelivery,
)
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.endpoint_settings_dataclass import is_failure
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound.errors import LateAnswer, OutcomeUnknown, RequestNotSent
from apps.redelivery.outbound.http_caller import (
    EndpointAnswer,
    EndpointRequest,
    HttpCaller,
)
from apps.redelivery.outbound.request_and_answer_headers import (
    DELIVERY,
    HOPS,
    IDEMPOTENCY_KEY,
)
from apps.redelivery.outbound.target_url import EndpointTarget

log = logging.getLogger(__name__)

LONGEST_LATE = 60.0
# As much as the gateway holds of the answer to a first try.
MOST_READ = 2**20
TOO_LATE = "not sent: its claim was over before the call could begin"
STOPPED = "the sender was stopped before the answer came"
BUG = "the sender could not make sense of the call: its log says why"
_OURS = frozenset({IDEMPOTENCY_KEY.lower(), DELIVERY})
_parse = lru_cache(maxsize=1_000)(EndpointTarget.parse)
_url_path = lru_cache(maxsize=250)(EndpointTarget.url_path)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryCall:
    """The result of a call, and a way to wait for an answer that is late."""

    result: CallResult
    late_answer: Callable[[], Awaitable[LateAnswer | None]] | None = None


async def call(
    caller: HttpCaller,
    endpoint: Endpoint,
    delivery: ClaimedDelivery,
    *,
    now: datetime,
) -> DeliveryCall:
    """Call the back end for a delivery; return a result before the claim ends.

    A process that was frozen makes no call for a delivery that may be another's by now.
    """
    remaining = (delivery.claimed_until - now).total_seconds()
    if remaining <= 0:
        return DeliveryCall(result=_failure(TOO_LATE))
    seconds = min(endpoint.attempt_timeout, remaining)
    late_for = min(max(endpoint.claim_timeout - seconds, 0.0), LONGEST_LATE)
    try:
        request = _request(endpoint, delivery)
        async with caller.call(request, seconds=seconds, late_for=late_for) as answer:
            return DeliveryCall(result=await _result(answer, endpoint))
    except (RequestNotSent, Invalid) as reason:
        return DeliveryCall(result=_failure(str(reason)))
    except OutcomeUnknown as reason:
        return DeliveryCall(
            result=_unknown(str(reason)), late_answer=reason.late_answer
        )
    except asyncio.CancelledError:
        return DeliveryCall(result=_unknown(STOPPED))
    except Exception:
        log.exception("the call of delivery %s failed", delivery.id)
        return DeliveryCall(result=_unknown(BUG))


def of_late_answer(late: LateAnswer) -> CallResult:
    """Build the result to store of a back end's answer after the time limit."""
    return CallResult(
        outcome=AttemptOutcome.UNKNOWN,
        status=late.status,
        headers=late.headers,
        body=late.body[:KEPT_ANSWER],
        is_cut=not late.is_complete,
    )


def headers_of_call(delivery: ClaimedDelivery) -> list[Header]:
    """Return the headers of each attempt: the caller's, and the ids of the delivery."""
    headers: list[Header] = [
        pair for pair in delivery.headers if pair[0].lower() not in _OURS
    ]
    if not any(name.lower() == HOPS for name, _ in headers):
        headers.append((HOPS, b"1"))
    return [
        *headers,
        (IDEMPOTENCY_KEY, delivery.idempotency_key.encode("latin-1", "replace")),
        (DELIVERY, str(delivery.id).encode()),
    ]


def _request(endpoint: Endpoint, delivery: ClaimedDelivery) -> EndpointRequest:
    target = _parse(endpoint.target)
    path, _, query = delivery.path.partition(b"?")
    return EndpointRequest(
        method=delivery.method.encode("latin-1", "replace"),
        target=target,
        path=_url_path(target, path, query),
        headers=headers_of_call(delivery),
        body=delivery.body,
    )


async def _result(answer: EndpointAnswer, endpoint: Endpoint) -> CallResult:
    """Read an answer, store its beginning, and judge its status.

    A status that is a failure says it all, though its body breaks off. Otherwise a body
    that breaks off within its first MiB raises OutcomeUnknown; no more of it is read.
    """
    failed = is_failure(answer.status, endpoint.failure_statuses)
    body = b""
    with suppress(*([OutcomeUnknown] if failed else [])):
        body = await answer.read(KEPT_ANSWER)
    is_cut = not answer.is_complete
    if is_cut and not failed:
        await answer.read(MOST_READ - KEPT_ANSWER)
    return CallResult(
        outcome=AttemptOutcome.FAILED if failed else AttemptOutcome.SUCCEEDED,
        status=answer.status,
        detail=f"HTTP {answer.status}" if failed else "",
        headers=answer.headers,
        body=body,
        is_cut=is_cut,
    )


def _failure(detail: str) -> CallResult:
    return CallResult(outcome=AttemptOutcome.FAILED, detail=detail)


def _unknown(detail: str) -> CallResult:
    return CallResult(outcome=AttemptOutcome.UNKNOWN, detail=detail)
