"""List, add, change and remove brokers, and ask them for their topics."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import IDEMPOTENCY_KEY, PAGING, REFUSED_KEY, describe_call
from apps.api.selectors import brokers
from apps.api.serializers import brokers as serializers
from apps.api.views.base import PostedBySessions, View, list_response
from apps.brokers import ping_and_discovery
from apps.brokers.services import broker_registration
from apps.capture import unused_topic_removal
from apps.core import clock
from apps.team.rights import Scope

REFUSED_REMOVAL = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class Brokers(View):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ, "POST": Scope.BROKERS_WRITE}

    @describe_call(
        "listBrokers",
        "List the brokers, and what each can do",
        answer=serializers.Brokers,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        """Lists brokers. The answer never has an address, only where it is stored.

        A key for some topics sees the brokers that carry any of them.
        """
        window = PageWindow.parse(request, name="brokers")
        page, details = brokers.find(window, self.principal)
        return list_response(page, serializers.Broker(details, many=True).data)

    @describe_call(
        "addBroker",
        "Add a broker",
        request=serializers.NewBroker,
        answer=serializers.AddedBroker,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Adds a broker without connecting: test it, then discover its topics."""
        broker = broker_registration.add(
            **serializers.NewBroker.parse(request.data),
            principal=self.principal,
            now=clock.now(),
        )
        return Response(
            serializers.Broker(brokers.detail_of(broker)).data,
            status=HTTPStatus.CREATED,
            headers={"Location": reverse("api-broker", args=[broker.pk])},
        )


class Broker(View):
    scopes: ClassVar = {
        "GET": Scope.BROKERS_READ,
        "PATCH": Scope.BROKERS_WRITE,
        "DELETE": Scope.BROKERS_WRITE,
    }

    @describe_call(
        "getBroker",
        "Show one broker",
        answer=serializers.Broker,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, broker_id: int) -> Response:
        detail = brokers.one(broker_id, self.principal)
        return Response(serializers.Broker(detail).data)

    @describe_call(
        "changeBroker",
        "Change a broker's name, address or options",
        request=serializers.BrokerChange,
        answer=serializers.Broker,
        refusals=[HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def patch(self, request: Request, broker_id: int) -> Response:
        """Changes a broker; members left out stay as they are, and so does the kind."""
        change = serializers.BrokerChange.parse(request.data)
        broker = broker_registration.alter(
            broker=brokers.visible(broker_id, self.principal),
            **change,
            principal=self.principal,
            now=clock.now(),
        )
        return Response(serializers.Broker(brokers.detail_of(broker)).data)

    @describe_call(
        "removeBroker",
        "Remove a broker, and its topics with it",
        request=serializers.BrokerRemoval,
        answer=serializers.Broker,
        refusals=REFUSED_REMOVAL,
    )
    def delete(self, request: Request, broker_id: int) -> Response:
        """Removes a broker, unless records refer to its topics: the 409 names those."""
        removal = serializers.BrokerRemoval.parse(request.data)
        detail = brokers.one(broker_id, self.principal)
        unused_topic_removal.remove_broker(
            broker=detail.broker,
            reason=removal["reason"],
            principal=self.principal,
            now=clock.now(),
        )
        return Response(serializers.Broker(detail).data)


class Test(View):
    scopes: ClassVar = {"POST": Scope.BROKERS_WRITE}

    @describe_call(
        "testBroker",
        "Reach a broker now, with the credentials that are kept",
        answer=serializers.Reached,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def post(self, _: Request, broker_id: int) -> Response:
        """Tests a broker for 10 s at most, changes nothing, and is a 200 either way."""
        broker = brokers.visible(broker_id, self.principal)
        reached = ping_and_discovery.reach(broker=broker)
        return Response(serializers.Reached(reached).data)


# The statuses of a refused discovery.
REFUSED_DISCOVERY = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class Discover(PostedBySessions):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ, "POST": Scope.BROKERS_READ}

    @describe_call(
        "discoverTopics",
        "List the topics that a broker has, with their dead-letter queues",
        answer=serializers.FoundTopics,
        refusals=REFUSED_DISCOVERY,
    )
    def get(self, _: Request, broker_id: int) -> Response:
        """Asks a broker for its topics, for 30 s at most; 503 when it is away.

        With a session it is a 403: POST instead.
        """
        return self._discover(broker_id)

    @describe_call(
        "discoverTopicsByPost",
        "List the topics that a broker has, also by a session",
        answer=serializers.FoundTopics,
        refusals=REFUSED_DISCOVERY,
    )
    def post(self, _: Request, broker_id: int) -> Response:
        """Asks a broker for its topics, for 30 s at most; 503 when it is away."""
        return self._discover(broker_id)

    def _discover(self, broker_id: int) -> Response:
        topics = brokers.discover(broker_id, self.principal)
        return Response({"results": serializers.FoundTopic(topics, many=True).data})
