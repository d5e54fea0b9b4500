"""Builders of endpoints, requests and results for tests of redelivery."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from apps.core.actor import Actor
from apps.redelivery.call_and_delivery_dataclasses import (
    CallResult,
    ClaimedDelivery,
    EndedAttempt,
    FirstTry,
    NewDelivery,
)
from apps.redelivery.delivery_ids import new_delivery_id
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
from apps.redelivery.models import Endpoint
from apps.redelivery.services import attempt_results, delivery_claims
from apps.redelivery.services.endpoints import create_endpoint, visible_endpoint
from apps.team.rights import Principal, Scope

NOW = datetime(2026, 5, 18, 12, 0, tzinfo=UTC)
ADMIN = Principal(actor=Actor("user:anna"), scopes=frozenset(Scope))
TARGET = "http://stock.example:9000/services"
SUCCESS = CallResult(outcome=AttemptOutcome.SUCCEEDED, status=200, body=b"fine")
DOWN = CallResult(outcome=AttemptOutcome.FAILED, detail="connection refused")
BROKEN = CallResult(outcome=AttemptOutcome.FAILED, status=503, detail="HTTP 503")
UNKNOWN = CallResult(outcome=AttemptOutcome.UNKNOWN, detail="no answer in 10 s")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def endpoint(name: str = "stock-quote", **settings: Any) -> Endpoint:
    """Create an endpoint without a breaker, unless the settings have one."""
    usual: dict[str, Any] = {"target": TARGET, "retries": 2, "breaker_failures": 0}
    create_endpoint(
        name=name,
        settings=EndpointSettings(**{**usual, **settings}),
        principal=ADMIN,
        now=NOW,
    )
    return visible_endpoint(name=name, principal=ADMIN)


def request(
    result: CallResult | None = None, *, tried_at: datetime = NOW, **changes: Any
) -> NewDelivery:
    """Make a request to store, with a first try if it has a result."""
    first = None
    if result is not None:
        first = FirstTry(begun_at=tried_at, ended_at=tried_at, result=result)
    values: dict[str, Any] = {
        "id": new_delivery_id(),
        "method": "POST",
        "path": b"/SimpleStockQuoteService?trace=%20",
        "headers": ((b"SOAPAction", b"urn:getQuote"), (b"X-Twice", b"\xff")),
        "body": b"<quote>\x00\xff</quote>",
        "caller": "key:shop",
        "idempotency_key": "order-13",
        "is_repeatable": True,
        "first_try": first,
    }
    return NewDelivery(**{**values, **changes})


def claim(
    of: Endpoint, *, fence: int = 1, at: float = 0.0, most: int = 100
) -> list[ClaimedDelivery]:
    return delivery_claims.claim(endpoint=of, fence=fence, most=most, now=later(at))


def end(
    of: Endpoint, claimed: ClaimedDelivery, result: CallResult, *, at: float = 0.0
) -> bool:
    """Record the result of a claimed delivery; tell whether it was believed."""
    attempt = EndedAttempt(
        delivery=claimed.id,
        claim=claimed.claim,
        attempt=claimed.attempt,
        ended_at=later(at),
        result=result,
    )
    return attempt_results.record(endpoint=of, attempts=[attempt], now=later(at))[0]
