"""The answers that callers get about their deliveries."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from apps.redelivery.call_and_delivery_dataclasses import CallResult
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.gateway.refusals import GatewayRefusal
from apps.redelivery.models import Attempt, Delivery, Endpoint

STATUS_PATH = "/gateway/-/deliveries/"
_WHAT_FOLLOWS = {
    DeliveryState.WAITING: "The request is stored and will be tried again.",
    # These are read only where the answer of Postgres to the first store was lost.
    DeliveryState.TRYING: "The request is stored and is being tried again.",
    DeliveryState.DELIVERED: "The request is stored, and was delivered meanwhile.",
    DeliveryState.GIVEN_UP: "It is not tried again: it waits for a decision.",
    DeliveryState.DROPPED: "It is not tried again: its endpoint drops such requests.",
    DeliveryState.FORWARDING: "It is not tried again: its endpoint forwards it.",
    DeliveryState.FORWARDED: "It is not tried again: its endpoint forwarded it.",
}
NOTHING_KEPT = "Postgres is away, so nothing was kept: send it again later."
PERHAPS_KEPT = (
    "Postgres went away meanwhile, so whether it was kept is unknown: ask the status"
    " address later."
)


def status_address(delivery: uuid.UUID) -> str:
    """Return the path at which a caller may ask for a delivery's status."""
    return f"{STATUS_PATH}{delivery}"


def stored_failure(
    delivery: Delivery, endpoint: Endpoint, *, detail: str, status: HTTPStatus
) -> GatewayRefusal:
    """Return the answer to a caller whose request failed and is stored."""
    following = _WHAT_FOLLOWS[DeliveryState(delivery.state)]
    return GatewayRefusal(
        status=status,
        detail=f"{detail} {following}",
        members={
            "delivery": str(delivery.pk),
            "kept": True,
            "state": delivery.state,
            "retry_count": delivery.retry_count,
            "plan": plan_of(delivery, endpoint),
            "status_address": status_address(delivery.pk),
        },
    )


def failure_without_postgres(
    delivery: uuid.UUID, *, detail: str, status: HTTPStatus, may_be_stored: bool
) -> GatewayRefusal:
    """Return the answer to a caller whose request failed and could not be stored."""
    members: dict[str, Any] = {"kept": None if may_be_stored else False}
    if may_be_stored:
        members = {
            "delivery": str(delivery),
            **members,
            "status_address": status_address(delivery),
        }
    following = PERHAPS_KEPT if may_be_stored else NOTHING_KEPT
    headers = ((b"retry-after", b"5"),)
    return GatewayRefusal(
        status=status,
        detail=f"{detail} {following}".strip(),
        headers=headers,
        members=members,
    )


def plan_of(delivery: Delivery, endpoint: Endpoint) -> dict[str, Any]:
    """Return a delivery's retry plan as JSON members.

    `retries_left` is None where the endpoint retries until the delivery expires.
    """
    is_waiting = delivery.state == DeliveryState.WAITING
    retries = None
    if endpoint.retries is not None:
        is_over = delivery.state not in {DeliveryState.WAITING, DeliveryState.TRYING}
        failed_retries = max(delivery.retry_count - 1, 0)
        retries = 0 if is_over else max(endpoint.retries - failed_retries, 0)
    expires_at = delivery.expires_at
    return {
        "retries_left": retries,
        "next_due": delivery.due_at.isoformat() if is_waiting else None,
        "interval": endpoint.interval,
        "expires_at": None if expires_at is None else expires_at.isoformat(),
    }


def delivery_status(delivery: Delivery, attempts: Iterable[Attempt]) -> dict[str, Any]:
    """Return what its caller may know of a delivery: no bodies."""
    return {
        "delivery": str(delivery.pk),
        "endpoint": delivery.endpoint.name,
        "state": delivery.state,
        "cause": delivery.cause or None,
        "retry_count": delivery.retry_count,
        "accepted_at": delivery.accepted_at.isoformat(),
        "finished_at": delivery.finished_at and delivery.finished_at.isoformat(),
        "plan": plan_of(delivery, delivery.endpoint),
        "attempts": [
            {
                "number": attempt.number,
                "outcome": attempt.outcome,
                "begun_at": attempt.begun_at.isoformat(),
                "ended_at": attempt.ended_at and attempt.ended_at.isoformat(),
                "status": attempt.status,
                "detail": attempt.detail,
            }
            for attempt in attempts
        ],
    }


def status_after(result: CallResult, *, is_over_time: bool) -> HTTPStatus:
    """Return the status of a failed call: 504 for a time-out, 502 for all else."""
    if result.status is None and is_over_time:
        return HTTPStatus.GATEWAY_TIMEOUT
    return HTTPStatus.BAD_GATEWAY
