"""Make deliveries of the requests that come as messages of a topic."""

from __future__ import annotations

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from django.conf import settings

from apps.brokers.models import Topic
from apps.capture.intake.requests_from_messages import (
    RequestMessage,
    RequestRefusal,
)
from apps.core.errors import Invalid
from apps.core.wildcard_patterns import matches
from apps.poison.services import redrive_confirmations_by_token
from apps.redelivery.call_and_delivery_dataclasses import NewDelivery
from apps.redelivery.due_notices import notify_due
from apps.redelivery.gateway.caller_connections import too_large
from apps.redelivery.gateway.refusals import GatewayRefusal
from apps.redelivery.gateway.request_checks import check_head, with_body
from apps.redelivery.models import Endpoint
from apps.redelivery.request_message_headers import REDRIVE
from apps.redelivery.services.delivery_row_inserts import insert_all
from apps.redelivery.services.endpoints import is_endpoint_name
from apps.redelivery.topic_requests import request_envelopes
from apps.redelivery.topic_requests.request_envelopes import RequestEnvelope
from poisonguard.contract import Cause


class _Request(NamedTuple):
    """A request that may be stored at its endpoint."""

    endpoint: Endpoint
    new: NewDelivery


def caller_of(topic: Topic) -> str:
    """Return the caller's name that requests from a topic have."""
    return f"topic:{topic.name}"


def store_requests(
    topic: Topic, messages: Sequence[RequestMessage], now: datetime
) -> list[RequestRefusal | None]:
    """Store the requests in these messages, in the transaction of the caller.

    Returns why each is refused, None of one that is stored now or was before.
    """
    envelopes_or_refusals = [_envelope_of(message, topic) for message in messages]
    endpoints = _endpoints_named(
        each.endpoint
        for each in envelopes_or_refusals
        if isinstance(each, RequestEnvelope)
    )
    requests = [
        each
        if isinstance(each, RequestRefusal)
        else _request_of(message, each, topic, endpoints.get(each.endpoint))
        for message, each in zip(messages, envelopes_or_refusals, strict=True)
    ]
    removed = _store([each for each in requests if isinstance(each, _Request)], now=now)
    refusals = [
        each if isinstance(each, RequestRefusal) else removed.get(each.new.id)
        for each in requests
    ]
    stored = [
        (message, request.endpoint)
        for message, request, refusal in zip(messages, requests, refusals, strict=True)
        if refusal is None and isinstance(request, _Request)
    ]
    for endpoint_id in sorted({endpoint.pk for _, endpoint in stored}):
        notify_due(endpoint_id=endpoint_id)
    _confirm_requeues([message for message, _ in stored], topic, now=now)
    return refusals


def _envelope_of(
    message: RequestMessage, topic: Topic
) -> RequestEnvelope | RequestRefusal:
    """Return the envelope of an endpoint's request in a message, or its refusal."""
    letter = message.letter
    # Twice the limit is more than base64 needs.
    if len(letter.body) > 2 * settings.POISONWEB_REQUEST_LIMIT:
        return _refusal(too_large(settings.POISONWEB_REQUEST_LIMIT).detail)
    try:
        envelope = request_envelopes.parse(letter.body, letter.headers)
    except Invalid as problem:
        return RequestRefusal(cause=Cause.UNDECODABLE, reason=str(problem))
    if not is_endpoint_name(envelope.endpoint):
        return _refusal(
            "It names no endpoint: an envelope names an endpoint and a path, never a"
            " URL."
        )
    patterns = topic.request_endpoints
    if not any(matches(pattern, envelope.endpoint) for pattern in patterns):
        return _refusal(
            f"This topic may not call the endpoint {envelope.endpoint}: its policies"
            " name others."
        )
    return envelope


def _endpoints_named(names: Iterable[str]) -> Mapping[str, Endpoint]:
    """Return the endpoints of these names, by name, as far as they exist."""
    rows = Endpoint.objects.filter(name__in=set(names))
    return {endpoint.name: endpoint for endpoint in rows}


def _request_of(
    message: RequestMessage,
    envelope: RequestEnvelope,
    topic: Topic,
    endpoint: Endpoint | None,
) -> _Request | RequestRefusal:
    """Return the delivery to store for a message's request, or why it is refused."""
    if endpoint is None:
        return _refusal(f"There is no endpoint {envelope.endpoint}.")
    try:
        return _Request(endpoint, _delivery(message, envelope, topic, endpoint))
    except GatewayRefusal as refusal:
        return _refusal(refusal.detail)


def _store(
    requests: Sequence[_Request], *, now: datetime
) -> Mapping[uuid.UUID, RequestRefusal]:
    """Store requests, those of each endpoint at once; return why some are refused."""
    by_endpoint = defaultdict[int, list[_Request]](list)
    for request in requests:
        by_endpoint[request.endpoint.pk].append(request)
    refusals = dict[uuid.UUID, RequestRefusal]()
    for endpoint_id, those in sorted(by_endpoint.items()):
        endpoint, deliveries = those[0].endpoint, [each.new for each in those]
        new_ids = insert_all(endpoint, deliveries, now=now)
        old_ids = {each.id for each in deliveries} - new_ids
        if old_ids and not Endpoint.objects.filter(pk=endpoint_id).exists():
            reason = f"The endpoint {endpoint} was removed a moment ago."
            refusals |= dict.fromkeys(old_ids, _refusal(reason))
    return refusals


def _delivery(
    message: RequestMessage, envelope: RequestEnvelope, topic: Topic, endpoint: Endpoint
) -> NewDelivery:
    """Build the delivery of a topic's request; raise GatewayRefusal as for a call.

    The identity of its message makes it one delivery, and is its idempotency key where
    the producer gave none.
    """
    limit = settings.POISONWEB_REQUEST_LIMIT
    if len(envelope.body) > limit:
        raise too_large(limit)
    head = check_head(
        envelope, endpoint=endpoint, caller=caller_of(topic), path=envelope.path
    )
    new = with_body(head, envelope, envelope.body).delivery()
    identity = str(message.identity)
    return dataclasses.replace(
        new,
        dedupe=f"topic-{identity}",
        idempotency_key=new.idempotency_key if head.callers_key else identity,
    )


def _confirm_requeues(
    messages: Sequence[RequestMessage], topic: Topic, *, now: datetime
) -> None:
    """Confirm the requeues that these messages come from: their requests are stored."""
    tokens = [
        (value.decode("latin-1"), topic.name)
        for message in messages
        for name, value in message.letter.headers
        if name.lower() == REDRIVE
    ]
    if tokens:
        redrive_confirmations_by_token.confirm(tokens=tokens, now=now)


def _refusal(reason: str) -> RequestRefusal:
    return RequestRefusal(cause=Cause.REJECTED, reason=reason)
