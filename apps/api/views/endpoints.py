"""List, add, change and remove endpoints, with their plans and figures."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, ClassVar

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import IDEMPOTENCY_KEY, PAGING, REFUSED_KEY, describe_call
from apps.api.selectors import endpoints
from apps.api.serializers import endpoints as serializers
from apps.api.views.base import View, list_response
from apps.core import clock
from apps.core.errors import Invalid
from apps.redelivery.services import endpoints as services
from apps.team.rights import Scope

REFUSED_CHANGE = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class Endpoints(View):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ, "POST": Scope.BROKERS_WRITE}

    @describe_call(
        "listEndpoints",
        "List the endpoints, with their plans, breakers and figures",
        answer=serializers.Endpoints,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        """Lists endpoints. A key sees those whose topic `gateway/NAME` it is for."""
        window = PageWindow.parse(request, name="endpoints")
        page, details = endpoints.find(window, self.principal, now=clock.now())
        return list_response(page, serializers.Endpoint(details, many=True).data)

    @describe_call(
        "addEndpoint",
        "Add an endpoint",
        request=serializers.NewEndpoint,
        answer=serializers.AddedEndpoint,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    def post(self, request: Request) -> Response:
        """Adds an endpoint and its topic `gateway/NAME`, which shows what is given up.

        The preset `article` tries again 10 times, every 3 s. `async-caller` stores a
        request before any try, waits 100 s for its answer, and tries again for 7 days.
        """
        new = serializers.NewEndpoint.parse(request.data)
        # Before the transaction of an Idempotency-Key: a look-up can take long.
        refusal = services.refusal_of_target(new["settings"].target)
        return self._add(request, new, refusal)

    @idempotent
    def _add(
        self, _: Request, new: dict[str, Any], refusal: Invalid | None
    ) -> Response:
        now = clock.now()
        endpoint = services.add_endpoint(
            **new, refusal=refusal, principal=self.principal, now=now
        )
        detail = endpoints.one(endpoint.pk, self.principal, now=now)
        return Response(
            serializers.Endpoint(detail).data,
            status=HTTPStatus.CREATED,
            headers={"Location": reverse("api-endpoint", args=[endpoint.pk])},
        )


class Endpoint(View):
    scopes: ClassVar = {
        "GET": Scope.BROKERS_READ,
        "PATCH": Scope.BROKERS_WRITE,
        "DELETE": Scope.BROKERS_WRITE,
    }

    @describe_call(
        "getEndpoint",
        "Show one endpoint",
        answer=serializers.Endpoint,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, endpoint_id: int) -> Response:
        detail = endpoints.one(endpoint_id, self.principal, now=clock.now())
        return Response(serializers.Endpoint(detail).data)

    @describe_call(
        "changeEndpoint",
        "Change an endpoint's settings, also for what waits already",
        request=serializers.EndpointChange,
        answer=serializers.Endpoint,
        refusals=REFUSED_CHANGE,
    )
    def patch(self, request: Request, endpoint_id: int) -> Response:
        """Changes an endpoint, all or nothing; members left out stay as they are."""
        change, now = serializers.EndpointChange.parse(request.data), clock.now()
        services.change_endpoint(
            name=endpoints.visible(endpoint_id, self.principal).name,
            **change,
            principal=self.principal,
            now=now,
        )
        detail = endpoints.one(endpoint_id, self.principal, now=now)
        return Response(serializers.Endpoint(detail).data)

    @describe_call(
        "removeEndpoint",
        "Remove an endpoint that has no deliveries",
        request=serializers.EndpointRemoval,
        answer=serializers.Endpoint,
        refusals=REFUSED_CHANGE,
    )
    def delete(self, request: Request, endpoint_id: int) -> Response:
        """Removes an endpoint; its topic stays, because its messages do.

        Disable an endpoint that has deliveries, so that their history stays as well.
        """
        removal, now = serializers.EndpointRemoval.parse(request.data), clock.now()
        detail = endpoints.one(endpoint_id, self.principal, now=now)
        services.remove_endpoint(
            name=detail.endpoint.name,
            **removal,
            principal=self.principal,
            now=now,
        )
        return Response(serializers.Endpoint(detail).data)
