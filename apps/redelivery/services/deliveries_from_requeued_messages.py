"""Requeue what was given up: each message becomes a new delivery of its endpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from apps.brokers.adapter_contract import Header, OutcomeKind, PublishOutcome
from apps.brokers.senders_of_topics_without_broker import TopicSender
from apps.brokers.services.topics_and_routing_publisher import RoutedMessage
from apps.core import clock
from apps.redelivery.call_and_delivery_dataclasses import NewDelivery
from apps.redelivery.delivery_ids import new_delivery_id
from apps.redelivery.delivery_order_keys import order_key_of
from apps.redelivery.models import Endpoint
from apps.redelivery.repeatability import is_repeatable
from apps.redelivery.request_message_headers import IDEMPOTENCY_KEY, METHOD, OURS, PATH
from apps.redelivery.services.request_acceptance import accept_all

_CALLER = "system:requeue"


def store_as_deliveries(
    messages: Sequence[RoutedMessage],
) -> list[PublishOutcome | None]:
    """Store the messages of endpoints' topics as deliveries; None for the others.

    A message that was stored before is a duplicate. One that does not say which request
    it is, is refused.
    """
    endpoints = {
        endpoint.topic_id: endpoint
        for endpoint in Endpoint.objects.filter(
            topic__in={message.topic.pk for message in messages}
        )
    }
    outcomes: list[PublishOutcome | None] = [None] * len(messages)
    for topic_id, endpoint in endpoints.items():
        indexes = [
            index
            for index, message in enumerate(messages)
            if message.topic.pk == topic_id
        ]
        batch = [messages[index] for index in indexes]
        for index, outcome in zip(indexes, _send(endpoint, batch), strict=True):
            outcomes[index] = outcome
    return outcomes


def topics_of_endpoints(topics: Collection[int]) -> Iterable[int]:
    """Return the ids of those of some topics that are an endpoint's."""
    endpoints = Endpoint.objects.filter(topic__in=topics)
    return endpoints.values_list("topic", flat=True)


SENDER = TopicSender(send=store_as_deliveries, owned=topics_of_endpoints)


def _send(
    endpoint: Endpoint, messages: Sequence[RoutedMessage]
) -> list[PublishOutcome]:
    """Store one endpoint's messages as its deliveries; return an outcome for each."""
    new = [_request(endpoint, message) for message in messages]
    stored = accept_all(
        endpoint=endpoint,
        deliveries=[request for request in new if request is not None],
        now=clock.now(),
    )
    if not stored and not Endpoint.objects.filter(pk=endpoint.pk).exists():
        return [_refusal(f"the endpoint {endpoint} was removed")] * len(messages)
    return [
        _refusal(f"it has no header {METHOD.decode()}, so it is no request")
        if request is None
        else PublishOutcome(
            kind=OutcomeKind.SENT if request.id in stored else OutcomeKind.DUPLICATE,
            bookmark=str(request.id) if request.id in stored else "",
        )
        for request in new
    ]


def _refusal(detail: str) -> PublishOutcome:
    return PublishOutcome(kind=OutcomeKind.REFUSED, detail=detail)


def _request(endpoint: Endpoint, message: RoutedMessage) -> NewDelivery | None:
    """Return the request that a message was; None where it does not say.

    It keeps its idempotency key: a back end that processed it after all knows it.
    """
    request_headers: Mapping[bytes, bytes] = {
        name.lower(): value for name, value in message.headers if name.lower() in OURS
    }
    if METHOD not in request_headers:
        return None
    headers: tuple[Header, ...] = tuple(
        header for header in message.headers if header[0].lower() not in OURS
    )
    method = request_headers[METHOD].decode("latin-1")
    id_ = new_delivery_id()
    return NewDelivery(
        id=id_,
        method=method,
        path=request_headers.get(PATH, b""),
        headers=headers,
        body=message.body,
        caller=_CALLER,
        idempotency_key=request_headers.get(IDEMPOTENCY_KEY, str(id_).encode()).decode(
            "latin-1"
        ),
        is_repeatable=is_repeatable(endpoint, method=method, headers=headers),
        order_key=order_key_of(endpoint, headers),
        dedupe=message.dedupe,
    )
