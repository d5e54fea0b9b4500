"""List, register, change and remove topics, with their policies and lanes."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import IDEMPOTENCY_KEY, PAGING, REFUSED_KEY, describe_call
from apps.api.selectors import topics
from apps.api.serializers import topics as serializers
from apps.api.views.base import View, list_response
from apps.capture import topic_and_lane_configuration, unused_topic_removal
from apps.core import clock
from apps.team.rights import Scope

REFUSED_CHANGE = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.CONFLICT,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)


class Topics(View):
    scopes: ClassVar = {
        "GET": Scope.BROKERS_READ,
        "POST": Scope.BROKERS_WRITE,
        "PATCH": Scope.BROKERS_WRITE,
        "DELETE": Scope.BROKERS_WRITE,
    }

    @describe_call(
        "listTopics",
        "List the topics, with their policies and how their lanes are",
        answer=serializers.Topics,
        parameters=[serializers.TopicsQuery, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists topics. One only reported has no broker; one not drained, no lane."""
        query = serializers.TopicsQuery.parse_query(request.query_params)
        window = PageWindow.parse(request, name="topics")
        page, details = topics.find(
            window, **query, principal=self.principal, now=clock.now()
        )
        return list_response(page, serializers.Topic(details, many=True).data)

    @describe_call(
        "registerTopic",
        "Say which broker carries a topic, and what its lane is to do",
        request=serializers.NewTopic,
        answer=serializers.RegisteredTopic,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Registers a topic. Without a `mode`, no lane reads its dead letters."""
        now = clock.now()
        topic = topic_and_lane_configuration.register(
            change=serializers.NewTopic.parse(request.data),
            principal=self.principal,
            now=now,
        )
        return Response(
            serializers.Topic(topics.detail_of(topic, now=now)).data,
            status=HTTPStatus.CREATED,
        )

    @describe_call(
        "changeTopic",
        "Change a topic's policies, or what its lane does",
        request=serializers.TopicChange,
        answer=serializers.Topic,
        refusals=REFUSED_CHANGE,
    )
    def patch(self, request: Request) -> Response:
        """Changes a topic, all or nothing; members left out stay as they are."""
        now = clock.now()
        topic = topic_and_lane_configuration.alter(
            change=serializers.TopicChange.parse(request.data),
            principal=self.principal,
            now=now,
        )
        return Response(serializers.Topic(topics.detail_of(topic, now=now)).data)

    @describe_call(
        "removeTopic",
        "Remove a topic of which nothing is on record",
        request=serializers.TopicRemoval,
        answer=serializers.Topic,
        refusals=REFUSED_CHANGE,
    )
    def delete(self, request: Request) -> Response:
        """Removes a topic and its lane's data; at its broker nothing is removed."""
        removal, now = serializers.TopicRemoval.parse(request.data), clock.now()
        detail = topics.one(removal["name"], self.principal, now=now)
        unused_topic_removal.remove_topics(
            topics=[detail.topic.pk],
            reason=removal["reason"],
            principal=self.principal,
            now=now,
        )
        return Response(serializers.Topic(detail).data)
