"""Forward what is not tried again to a topic, as its endpoint says.

A broker may hang, so it is never called in a transaction: read what is to be sent,
send it, and record what the broker said. A sender that ends in between sends it again
under the same id.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from apps.brokers.adapter_contract import OutcomeKind, PublishOutcome
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.core.text_cleaning import storable
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.request_message_headers import (
    DELIVERY,
    METHOD,
    OURS,
    PATH,
    REDRIVE,
)
from apps.redelivery.services import delivery_endings

log = logging.getLogger(__name__)

# Of the bodies of one batch, but it has one message at least.
MOST_BYTES = 16 * 2**20
_DETAIL_LIMIT = 2_000
_ARRIVED = (OutcomeKind.SENT, OutcomeKind.DUPLICATE)
_REFUSAL = PublishOutcome(
    kind=OutcomeKind.REFUSED, detail="its endpoint forwards to no topic any more"
)
_END_COLUMNS = ("state", "finished_at", "last_error", "poison")


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """A delivery that goes to a topic; None where its endpoint names none any more."""

    delivery: uuid.UUID
    message: RoutedMessage | None


def next_forwards(*, endpoint: Endpoint, most: int) -> list[Forward]:
    """Return an endpoint's oldest deliveries to forward to its topic now."""
    waiting = Delivery.objects.filter(
        endpoint=endpoint, state=DeliveryState.FORWARDING
    ).order_by("pk")
    sizes, ids = 0, list[uuid.UUID]()
    for pk, size in waiting.values_list("pk", "size")[:most]:
        sizes += size
        if ids and sizes > MOST_BYTES:
            break
        ids.append(pk)
    deliveries = Delivery.objects.filter(pk__in=ids).select_related("body")
    return [
        Forward(delivery=each.pk, message=_message(each, endpoint))
        for each in deliveries.order_by("pk")
    ]


def publish_forwards(forwards: Sequence[Forward]) -> list[PublishOutcome]:
    """Publish deliveries to the topics that their endpoints forward to.

    Returns an outcome for each, in order; one without a topic is refused.
    """
    messages = [each.message for each in forwards if each.message is not None]
    with RoutingPublisher() as publisher:
        answers = iter(publisher.publish(messages))
    return [_REFUSAL if each.message is None else next(answers) for each in forwards]


@transaction.atomic
def record_forwards(
    *,
    endpoint: Endpoint,
    outcomes: Sequence[tuple[Forward, PublishOutcome]],
    now: datetime,
) -> int:
    """End what has arrived, give to triage what was refused; return how many ended.

    The others are sent again: under the same id, so that a broker that has the message
    already can tell.
    """
    answers = {forward.delivery: outcome for forward, outcome in outcomes}
    rows = Delivery.objects.select_for_update().filter(
        pk__in=answers, state=DeliveryState.FORWARDING
    )
    ended = 0
    for delivery in rows.order_by("pk"):
        answer = answers[delivery.pk]
        if answer.kind in _ARRIVED:
            delivery.state = DeliveryState.FORWARDED.value
            delivery.finished_at = now
        elif answer.kind is OutcomeKind.REFUSED:
            _give_to_triage(delivery, endpoint, answer.detail, now=now)
        else:
            log.warning("delivery %s waits to be forwarded: %s", delivery.pk, answer)
            continue
        delivery.save(update_fields=_END_COLUMNS)
        ended += 1
    return ended


def _message(delivery: Delivery, endpoint: Endpoint) -> RoutedMessage | None:
    """Build a delivery's message: body, headers, and how it was addressed."""
    if endpoint.forward_topic is None:
        return None
    removed = OURS | {REDRIVE}
    headers = [
        pair
        for pair in delivery_endings.headers_of(delivery)
        if pair[0].lower() not in removed
    ]
    return RoutedMessage(
        topic=endpoint.forward_topic,
        body=bytes(delivery.body.content),
        headers=(
            *headers,
            (METHOD, delivery.method.encode()),
            (PATH, bytes(delivery.path)),
            (DELIVERY, str(delivery.pk).encode()),
        ),
        dedupe=str(delivery.pk),
        key=bytes(delivery.order_key or b"").decode("latin-1"),
    )


def _give_to_triage(
    delivery: Delivery, endpoint: Endpoint, reason: str, *, now: datetime
) -> None:
    """Give to triage what cannot be forwarded, and say why."""
    log.warning("delivery %s cannot be forwarded: %s", delivery.pk, reason)
    error = f"{delivery.last_error}; not forwarded: {reason}".removeprefix("; ")
    delivery.last_error = storable(error, limit=_DETAIL_LIMIT)
    delivery_endings.give_to_triage(delivery, endpoint, now=now)
