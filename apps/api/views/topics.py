"""TOPICS: their policies, and what their lanes do."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.openapi import (
    IDEMPOTENCY_KEY,
    PAGING,
    REFUSED_KEY,
    TOPICS,
    described,
)
from apps.api.paging import Window
from apps.api.parameters import topics as asked
from apps.api.schemas import topics as schemas
from apps.api.selectors import topics
from apps.api.shapes import topics as shapes
from apps.api.views.base import View, listed
from apps.capture import topic_removal
from apps.core import clock
from apps.team.rights import Scope

CHANGED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class Topics(View):
    scopes: ClassVar = {
        "GET": Scope.BROKERS_READ,
        "POST": Scope.BROKERS_WRITE,
        "PATCH": Scope.BROKERS_WRITE,
        "DELETE": Scope.BROKERS_WRITE,
    }

    @described(
        "listTopics",
        "List the topics, with their policies and how their lanes are",
        answer=schemas.Topics,
        parameters=[*TOPICS, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """One that was only reported has no broker, and one not watched no lane."""
        wanted = asked.TopicsWanted.parse(request.query_params)
        window = Window.parse(request.query_params, name="topics")
        page, seen = topics.find(window, wanted, self.principal)
        return listed(page, [shapes.topic(each, now=clock.now()) for each in seen])

    @described(
        "registerTopic",
        "Say which broker carries a topic, and what its lane is to do",
        request=schemas.NewTopic,
        answer=schemas.RegisteredTopic,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Without a `mode` nobody looks at its dead letters yet."""
        change = asked.TopicChange.parse_new(request.data)
        with transaction.atomic():
            seen = topics.register(change, self.principal, now=clock.now())
        return Response(shapes.topic(seen, now=clock.now()), status=HTTPStatus.CREATED)

    @described(
        "changeTopic",
        "Change a topic's policies, or what its lane does",
        request=schemas.TopicChange,
        answer=schemas.Topic,
        refusals=CHANGED,
    )
    def patch(self, request: Request) -> Response:
        """All of it or nothing; what is left out stays as it is."""
        change = asked.TopicChange.parse(request.data)
        with transaction.atomic():
            seen = topics.alter(change, self.principal, now=clock.now())
        return Response(shapes.topic(seen, now=clock.now()))

    @described(
        "removeTopic",
        "Remove a topic of which nothing is on record",
        request=schemas.TopicRemoval,
        answer=schemas.Topic,
        refusals=CHANGED,
    )
    def delete(self, request: Request) -> Response:
        """What its lane saw goes with it; at its broker nothing is removed."""
        removal = asked.TopicRemoval.parse(request.data)
        seen = topics.one(removal.name, self.principal)
        topic_removal.remove_topics(
            topics=[seen.topic.pk],
            reason=removal.reason,
            principal=self.principal,
            now=clock.now(),
        )
        return Response(shapes.topic(seen, now=clock.now()))
