"""Store deliveries and look them up: what the gateway asks of Postgres.

Each function runs in one of the `GatewayDatabaseThreads`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from django.db import IntegrityError, InterfaceError, OperationalError, connection

from apps.core import clock
from apps.core.errors import Unavailable
from apps.core.postgres_connections import session_ends_as_absence
from apps.core.values_refused_by_postgres import refuses_value
from apps.redelivery.call_and_delivery_dataclasses import CallResult, NewDelivery
from apps.redelivery.endpoint_and_delivery_choices import UNFINISHED
from apps.redelivery.gateway.database_threads import DatabaseAway
from apps.redelivery.gateway.delivery_answers import delivery_status
from apps.redelivery.models import Attempt, Delivery, Endpoint, EndpointActivity
from apps.redelivery.services import attempt_results, circuit_breaker, delivery_endings
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Principal


class PerhapsStored(Unavailable):
    """Postgres went away while it stored something: whether it did is unknown."""


class EndpointAway(DatabaseAway):
    """The endpoint was removed a moment ago: nothing can be stored for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDelivery:
    """A delivery that is durable, and whether its endpoint's breaker is open."""

    delivery: Delivery
    is_breaker_open: bool


def store(endpoint: Endpoint, new: NewDelivery) -> Delivery:
    """Store a request as one delivery, on a second session if the first breaks.

    Raises PerhapsStored, where neither tells whether it is stored.
    """
    try:
        return _accept(endpoint, new)
    except (OperationalError, InterfaceError) as problem:
        if refuses_value(problem) or connection.is_usable():
            raise
        connection.close()
    try:
        return _accept_unless_stored(endpoint, new)
    except (OperationalError, InterfaceError) as problem:
        connection.close()
        raise PerhapsStored from problem


def store_with_breaker(endpoint: Endpoint, new: NewDelivery) -> StoredDelivery:
    """Store a request after its first try, or instead of one.

    Tells also whether its endpoint's breaker is open now.
    """
    delivery = store(endpoint, new)
    is_open = EndpointActivity.objects.filter(
        endpoint=endpoint, endpoint__breaker_failures__gt=0, open_until__isnull=False
    ).exists()
    return StoredDelivery(delivery=delivery, is_breaker_open=is_open)


def reason_against_try(
    endpoint: Endpoint, order_key: bytes | None, *, is_open: bool
) -> str:
    """Return why an endpoint's back end is not called now (breaker, order), or ""."""
    if order_key is not None:
        earlier = Delivery.objects.filter(
            endpoint=endpoint, order_key=order_key, state__in=UNFINISHED
        )
        if earlier.exists():
            return "An earlier request of its order key waits, so it was not tried."
    if is_open and not circuit_breaker.may_probe(endpoint=endpoint, now=clock.now()):
        return "Its endpoint's last calls failed, so the back end was not called."
    return ""


def close_breaker(endpoint: Endpoint) -> None:
    """Close an endpoint's breaker after a success at the first try."""
    circuit_breaker.close_after_success(endpoint_id=endpoint.pk)


def keep_late_answer(delivery: uuid.UUID, result: CallResult) -> None:
    """Store an answer that came after the first try's time on its attempt."""
    attempt_results.keep_late_answer(
        delivery=delivery, number=1, result=result, now=clock.now()
    )


def status(delivery: uuid.UUID, principal: Principal) -> dict[str, object] | None:
    """Describe a delivery to the caller whose it is; None for others."""
    row = (
        Delivery.objects.select_related("endpoint__topic")
        .filter(pk=delivery, caller=str(principal.actor))
        .first()
    )
    if row is None or not principal.sees(row.endpoint.topic.name):
        return None
    attempts = Attempt.objects.filter(delivery=row).defer(
        "answer", "answer_headers", "late_answer"
    )
    newest = attempts.order_by("-number")[: delivery_endings.MOST_ATTEMPTS]
    return delivery_status(row, reversed(newest))


def _accept_unless_stored(endpoint: Endpoint, new: NewDelivery) -> Delivery:
    """Store a request that an earlier session may have stored, or may store yet."""
    try:
        earlier = Delivery.objects.filter(pk=new.id).first()
        return earlier or _accept(endpoint, new)
    except IntegrityError:
        # The first session committed meanwhile.
        return Delivery.objects.get(pk=new.id)


def _accept(endpoint: Endpoint, new: NewDelivery) -> Delivery:
    with session_ends_as_absence():
        delivery = accept(endpoint=endpoint, new=new, now=clock.now())
    if delivery is None:
        raise EndpointAway
    return delivery
