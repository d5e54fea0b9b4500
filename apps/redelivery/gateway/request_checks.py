"""Calls of endpoints that may be made: everything of a request is checked here."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.core.wildcard_patterns import matches
from apps.redelivery.call_and_delivery_dataclasses import FirstTry, NewDelivery
from apps.redelivery.delivery_ids import new_delivery_id
from apps.redelivery.delivery_order_keys import order_key_of
from apps.redelivery.gateway.refusals import GatewayRefusal
from apps.redelivery.gateway.soap_envelopes import (
    SoapVersion,
    declared_version,
    version_of,
)
from apps.redelivery.models import Endpoint
from apps.redelivery.outbound import request_and_answer_headers
from apps.redelivery.outbound.errors import GatewayLoop
from apps.redelivery.outbound.http_caller import EndpointRequest
from apps.redelivery.outbound.target_url import EndpointTarget
from apps.redelivery.repeatability import is_repeatable

target_of = lru_cache(maxsize=10_000)(EndpointTarget.parse)


@dataclass(kw_only=True, slots=True)
class EndpointCall:
    """A call of an endpoint by a caller, with the request that its back end gets."""

    id: uuid.UUID
    endpoint: Endpoint
    caller: str
    path: bytes
    request: EndpointRequest
    callers_key: bytes
    order_key: bytes | None

    @property
    def soap(self) -> SoapVersion | None:
        """Return the SOAP version in which a failure of this call is answered."""
        return version_of(self.request.headers, self.request.body)

    def delivery(self, first_try: FirstTry | None = None) -> NewDelivery:
        """Build the delivery to store for this call."""
        method = self.request.method.decode("ascii")
        headers = self._stored_headers()
        return NewDelivery(
            id=self.id,
            method=method,
            path=self.path,
            headers=headers,
            body=self.request.body,
            caller=self.caller,
            idempotency_key=(
                self.callers_key.decode("latin-1") if self.callers_key else str(self.id)
            ),
            is_repeatable=is_repeatable(self.endpoint, method=method, headers=headers),
            order_key=self.order_key,
            first_try=first_try,
        )

    def _stored_headers(self) -> list[Header]:
        """Return the headers to store with a delivery: the caller's, and the hop count.

        Left out are the delivery's id, and an idempotency key that is not the caller's:
        each attempt gets them from the delivery's columns.
        """
        ours = {request_and_answer_headers.DELIVERY}
        if not self.callers_key:
            ours.add(request_and_answer_headers.IDEMPOTENCY_KEY.lower())
        headers = self.request.headers
        return [header for header in headers if header[0].lower() not in ours]


@dataclass(kw_only=True, slots=True)
class CheckedHead:
    """The head of a call, which is checked before its body is read."""

    id: uuid.UUID
    endpoint: Endpoint
    caller: str
    path: bytes
    target: EndpointTarget
    url_path: bytes
    headers: list[Header]
    callers_key: bytes
    order_key: bytes | None


class IncomingRequest(Protocol):
    """A request as it came, by HTTP or in a message."""

    @property
    def method(self) -> str: ...
    @property
    def query(self) -> bytes: ...
    @property
    def headers(self) -> Sequence[Header]: ...


def check_head(
    request: IncomingRequest, *, endpoint: Endpoint, caller: str, path: bytes
) -> CheckedHead:
    """Check path and headers of a call, before its body; raise GatewayRefusal."""
    id_ = new_delivery_id()
    target = target_of(endpoint.target)
    _check_size(request.headers)
    try:
        url_path = target.url_path(path, request.query)
        headers, callers_key = request_and_answer_headers.request_headers(
            request.headers, delivery_id=str(id_)
        )
    except Invalid as problem:
        raise _bad_request(problem) from None
    except GatewayLoop as loop:
        raise GatewayRefusal(
            status=HTTPStatus.LOOP_DETECTED, detail=str(loop)
        ) from None
    if not _is_allowed(path, endpoint.paths):
        raise GatewayRefusal(
            status=HTTPStatus.NOT_FOUND,
            detail=f"The endpoint {endpoint} does not take this path.",
        )
    return CheckedHead(
        id=id_,
        endpoint=endpoint,
        caller=caller,
        path=path + (b"?" + request.query if request.query else b""),
        target=target,
        url_path=url_path,
        headers=headers,
        callers_key=callers_key,
        order_key=order_key_of(endpoint, request.headers),
    )


def with_body(
    head: CheckedHead, incoming: IncomingRequest, body: bytes
) -> EndpointCall:
    """Build the call to the back end; raise GatewayRefusal for what is no HTTP."""
    request = EndpointRequest(
        method=incoming.method.encode("ascii"),
        target=head.target,
        path=head.url_path,
        headers=head.headers,
        body=body,
    )
    try:
        request.head()
        if declared_version(head.headers) is not None:
            version_of(head.headers, body)  # refuses a doctype
    except Invalid as problem:
        raise _bad_request(problem) from None
    return EndpointCall(
        id=head.id,
        endpoint=head.endpoint,
        caller=head.caller,
        path=head.path,
        request=request,
        callers_key=head.callers_key,
        order_key=head.order_key,
    )


def _check_size(headers: Sequence[Header]) -> None:
    """Raise GatewayRefusal for too many or too large headers of a call."""
    size = sum([len(name) + len(value) + 4 for name, value in headers])
    most, most_bytes = (
        request_and_answer_headers.MOST_HEADERS,
        request_and_answer_headers.MOST_HEADER_BYTES,
    )
    if len(headers) > most or size > most_bytes:
        raise GatewayRefusal(
            status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            detail=f"There are {len(headers)} headers of {size} bytes: send at most"
            f" {most} of {most_bytes} bytes in all.",
        )


def _is_allowed(path: bytes, patterns: Sequence[str]) -> bool:
    """Tell whether an endpoint takes a path, by its patterns; without any, it does."""
    if not patterns:
        return True
    text = unquote(path.decode("ascii")) or "/"
    return any(matches(pattern, text) for pattern in patterns)


def _bad_request(problem: Invalid) -> GatewayRefusal:
    return GatewayRefusal(status=HTTPStatus.BAD_REQUEST, detail=str(problem))
