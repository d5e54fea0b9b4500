"""Read deliveries with their attempts, and decide about them."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import ClassVar

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import (
    DELIVERY_FILTERS,
    IDEMPOTENCY_KEY,
    PAGING,
    REFUSED_KEY,
    describe_call,
)
from apps.api.selectors import deliveries
from apps.api.serializers import deliveries as serializers
from apps.api.views.base import PostedBySessions, View, list_response
from apps.core import clock
from apps.core.streaming_responses import response_chunks
from apps.redelivery.delivery_filters import DeliveryFilter
from apps.redelivery.services import delivery_content_access, delivery_decisions
from apps.team.rights import Scope


class Deliveries(View):
    scopes: ClassVar = {"GET": Scope.POISONS_READ}

    @describe_call(
        "listDeliveries",
        "List deliveries, the latest first",
        answer=serializers.Deliveries,
        parameters=[*DELIVERY_FILTERS, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists deliveries. A request that succeeds at its first try leaves none."""
        window = PageWindow.parse(request, name="deliveries")
        filters = DeliveryFilter.parse(request.query_params)
        page = deliveries.matching(filters, window, self.principal)
        return list_response(page, serializers.DeliveryRow(page.rows, many=True).data)


class SingleDelivery(View):
    scopes: ClassVar = {"GET": Scope.POISONS_READ}

    @describe_call(
        "readDelivery",
        "Read one delivery with its attempts and audit entries",
        answer=serializers.DeliveryDetail,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, delivery_id: uuid.UUID) -> Response:
        """Shows a delivery with its headers' names: values are secret like the body."""
        detail = deliveries.one(delivery_id, self.principal)
        return Response(serializers.DeliveryDetail(detail).data)


class DeliveryBody(PostedBySessions):
    scopes: ClassVar = {"GET": Scope.BODIES_READ, "POST": Scope.BODIES_READ}

    @describe_call(
        "downloadDelivery",
        "Download the exact bytes of a delivery's body",
        answer=OpenApiTypes.BINARY,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, request: Request, delivery_id: uuid.UUID) -> StreamingHttpResponse:
        """Sends a delivery's body and audits it. A session gets a 403: POST instead."""
        return self._download(request, delivery_id)

    @describe_call(
        "downloadDeliveryByPost",
        "Download the exact bytes of a delivery's body, also by a session",
        answer=OpenApiTypes.BINARY,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def post(self, request: Request, delivery_id: uuid.UUID) -> StreamingHttpResponse:
        """Sends a delivery's body, and writes an audit entry."""
        return self._download(request, delivery_id)

    def _download(
        self, request: Request, delivery_id: uuid.UUID
    ) -> StreamingHttpResponse:
        delivery, chunks = delivery_content_access.download(
            delivery_id=delivery_id, principal=self.principal, now=clock.now()
        )
        name = f"delivery-{delivery.pk}.bin"
        return StreamingHttpResponse(
            response_chunks(request, chunks),
            content_type="application/octet-stream",
            headers={
                "Content-Length": str(delivery.size),
                "Content-Disposition": f'attachment; filename="{name}"',
                "X-Content-Type-Options": "nosniff",
            },
        )


class RetryDeliveries(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "retryDeliveries",
        "Try waiting deliveries again now",
        request=serializers.DeliveryDecision,
        answer=serializers.DecisionResult,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Makes deliveries due. Their plan stays; an open breaker still holds them."""
        ask = serializers.DeliveryDecision.parse(request.data)
        number = delivery_decisions.retry_now(
            **ask, principal=self.principal, now=clock.now()
        )
        return _answer(ask["ids"], number)


class GiveUpDeliveries(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "giveUpDeliveries",
        "End waiting deliveries as their endpoints say",
        request=serializers.GiveUpDecision,
        answer=serializers.DecisionResult,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Sends deliveries to triage, drops or forwards them, with cause `manual`."""
        ask = serializers.GiveUpDecision.parse(request.data)
        number = delivery_decisions.give_up(
            **ask, principal=self.principal, now=clock.now()
        )
        return _answer(ask["ids"], number)


class RestoreDeliveries(View):
    scopes: ClassVar = {"POST": Scope.OPERATIONS_WRITE}

    @describe_call(
        "restoreDeliveries",
        "Let dropped deliveries begin their plan from the start",
        request=serializers.DeliveryDecision,
        answer=serializers.DecisionResult,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Makes dropped deliveries due at once, with all of their retries."""
        ask = serializers.DeliveryDecision.parse(request.data)
        number = delivery_decisions.restore(
            **ask, principal=self.principal, now=clock.now()
        )
        return _answer(ask["ids"], number)


def _answer(ids: set[uuid.UUID], number: int) -> Response:
    answer = {"total": len(ids), "acted_on": number}
    return Response(serializers.DecisionResult(answer).data)
