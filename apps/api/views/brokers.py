"""BROKERS: where messages are, and what is there."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.openapi import (
    IDEMPOTENCY_KEY,
    PAGING,
    REFUSED_KEY,
    described,
)
from apps.api.paging import Window
from apps.api.parameters import brokers as asked
from apps.api.schemas import brokers as schemas
from apps.api.selectors import brokers
from apps.api.shapes import brokers as shapes
from apps.api.views.base import PostedBySessions, View, listed
from apps.brokers import connectivity
from apps.capture import topic_removal
from apps.core import clock
from apps.team.rights import Scope

REMOVED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class Brokers(View):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ, "POST": Scope.BROKERS_WRITE}

    @described(
        "listBrokers",
        "List the brokers, and what each can do",
        answer=schemas.Brokers,
        parameters=PAGING,
        refusals=[HTTPStatus.BAD_REQUEST],
    )
    def get(self, request: Request) -> Response:
        """The answer never contains an address, only where it is stored.

        A key of some topics sees the brokers that carry any of them.
        """
        window = Window.parse(request.query_params, name="brokers")
        page, seen = brokers.find(window, self.principal)
        return listed(page, [shapes.broker(each) for each in seen])

    @described(
        "addBroker",
        "Add a broker",
        request=schemas.NewBroker,
        answer=schemas.AddedBroker,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Nothing is asked of it yet: test it, then see what it has."""
        new = asked.NewBroker.parse(request.data)
        seen = brokers.add(new, self.principal, now=clock.now())
        where = reverse("api-broker", args=[seen.broker.pk])
        return Response(
            shapes.broker(seen), status=HTTPStatus.CREATED, headers={"Location": where}
        )


class Broker(View):
    scopes: ClassVar = {
        "GET": Scope.BROKERS_READ,
        "PATCH": Scope.BROKERS_WRITE,
        "DELETE": Scope.BROKERS_WRITE,
    }

    @described(
        "getBroker",
        "Show one broker",
        answer=schemas.Broker,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, broker_id: int) -> Response:
        return Response(shapes.broker(brokers.one(broker_id, self.principal)))

    @described(
        "changeBroker",
        "Change a broker's name, address or options",
        request=schemas.BrokerChange,
        answer=schemas.Broker,
        refusals=[HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def patch(self, request: Request, broker_id: int) -> Response:
        """What is left out stays as it is; its kind stays, too."""
        change = asked.BrokerChange.parse(request.data)
        seen = brokers.alter(broker_id, change, self.principal, now=clock.now())
        return Response(shapes.broker(seen))

    @described(
        "removeBroker",
        "Remove a broker, and its topics with it",
        request=schemas.BrokerRemoval,
        answer=schemas.Broker,
        refusals=REMOVED,
    )
    def delete(self, request: Request, broker_id: int) -> Response:
        """Nothing goes while anything is on record of one of them: 409 names those."""
        removal = asked.BrokerRemoval.parse(request.data)
        seen = brokers.one(broker_id, self.principal)
        topic_removal.remove_broker(
            broker=seen.broker,
            reason=removal.reason,
            principal=self.principal,
            now=clock.now(),
        )
        return Response(shapes.broker(seen))


class Test(View):
    scopes: ClassVar = {"POST": Scope.BROKERS_WRITE}

    @described(
        "testBroker",
        "Reach a broker now, with the credentials that are kept",
        answer=schemas.Reached,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def post(self, _: Request, broker_id: int) -> Response:
        """It takes 10 s at most, changes nothing, and is a 200 either way."""
        broker = brokers.visible(broker_id, self.principal)
        return Response(shapes.reached(connectivity.reach(broker=broker)))


# What discovering can be refused for.
UNDISCOVERED = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class Discover(PostedBySessions):
    scopes: ClassVar = {"GET": Scope.BROKERS_READ, "POST": Scope.BROKERS_READ}

    @described(
        "discoverTopics",
        "List the topics that a broker has, with their dead-letter queues",
        answer=schemas.FoundTopics,
        refusals=UNDISCOVERED,
    )
    def get(self, _: Request, broker_id: int) -> Response:
        """Asked of the broker itself, in 30 s at most; 503 when it is away.

        By a session it is a 403: POST instead.
        """
        return self._discover(broker_id)

    @described(
        "discoverTopicsByPost",
        "List the topics that a broker has, also by a session",
        answer=schemas.FoundTopics,
        refusals=UNDISCOVERED,
    )
    def post(self, _: Request, broker_id: int) -> Response:
        """Asked of the broker itself, in 30 s at most; 503 when it is away."""
        return self._discover(broker_id)

    def _discover(self, broker_id: int) -> Response:
        found = brokers.discovered(broker_id, self.principal)
        return Response({"results": [shapes.found_topic(each) for each in found]})
