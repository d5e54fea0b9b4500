"""Refusals, and how they are written: a problem (RFC 9457), or a SOAP fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from apps.brokers.adapter_contract import Header
from apps.redelivery.gateway.soap_envelopes import SoapVersion, fault

FAILED_CALLS = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})


@dataclass(kw_only=True, eq=False)
class GatewayRefusal(Exception):
    """A call that gets no answer of a back end: what its caller is answered.

    `members` are added to the problem, or to the detail of the fault.
    """

    status: HTTPStatus
    detail: str
    headers: tuple[Header, ...] = ()
    members: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_of_caller(self) -> bool:
        """Tell whether a refused call is the caller's fault (4xx)."""
        return self.status < HTTPStatus.INTERNAL_SERVER_ERROR

    def message(self, soap: SoapVersion | None) -> tuple[int, list[Header], bytes]:
        """Return status, headers and body of the answer to a refused call."""
        status = int(self.status)
        if soap is None:
            content_type = "application/problem+json"
            body = json.dumps(
                {
                    "type": "about:blank",
                    "title": self.status.phrase,
                    "status": status,
                    "detail": self.detail,
                    **self.members,
                }
            ).encode()
        else:
            content_type = soap.content_type
            body = fault(
                soap,
                is_of_caller=self.is_of_caller,
                reason=self.detail,
                detail=self.members,
            )
            if self.status in FAILED_CALLS:
                # What failed is the call, so SOAP over HTTP demands this status.
                status = HTTPStatus.INTERNAL_SERVER_ERROR
        return status, [(b"content-type", content_type.encode()), *self.headers], body


def busy(detail: str, *, seconds: int = 1) -> GatewayRefusal:
    """Build the refusal of a call with 503: the gateway is busy."""
    return GatewayRefusal(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        detail=detail,
        headers=((b"retry-after", b"%d" % seconds),),
    )
