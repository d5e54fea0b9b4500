"""Read the whole skip list, follow its changes, add and remove skips."""

from __future__ import annotations

import gzip
import re
from http import HTTPStatus
from typing import ClassVar

from django.http import HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from drf_spectacular.types import OpenApiTypes
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api import skip_list_cache
from apps.api.authentication import credential_of
from apps.api.idempotency import idempotent
from apps.api.list_in_request_body import list_of
from apps.api.openapi import (
    EVENT_STREAM,
    FOLLOWED,
    IDEMPOTENCY_KEY,
    REFUSED_KEY,
    describe_call,
)
from apps.api.response_dicts import message_skips as shapes
from apps.api.serializers import message_skips as serializers
from apps.api.skip_stream import event_hub
from apps.api.skip_stream.stream_params import StreamParams
from apps.api.views.base import View
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.intake import applied_skips
from apps.core import clock
from apps.core.batch_requests import Batch
from apps.core.errors import Unavailable
from apps.poison import skip_addition_and_removal
from apps.poison.skip_list_for_consumers import ListedSkip
from apps.team.rights import Scope
from poisonguard.contract import parse_applied
from poisonguard.skipping.skip_list_line_format import MEDIA_TYPE


class Exact(JSONRenderer):
    """JSON in ASCII: a bookmark may hold surrogates, which UTF-8 cannot encode."""

    ensure_ascii = True


class Skips(View):
    scopes: ClassVar = {"GET": Scope.SKIPS_READ, "POST": Scope.SKIPS_WRITE}
    ignores_unknown_parameters = True
    renderer_classes = (Exact,)

    @describe_call(
        "listSkips",
        "Give all that consumers of a topic pass over now",
        answer=serializers.Skips,
        parameters=[serializers.SkipListQuery],
        refusals=[HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> HttpResponse:
        """Begin with this skip list, then follow the stream after `<epoch>.<revision>`.

        A consumer checks `expires_at` itself. A topic that is not known here yet has an
        empty list. `Accept` of `application/vnd.poisonweb.skips+jsonl` beside JSON
        gives the same in columns, a sixteenth of the size with gzip: docs/protocol.md.
        """
        query = serializers.SkipListQuery.parse_query(request.query_params)
        skip_addition_and_removal.require_topic_right(
            topic=query["topic"], principal=self.principal
        )
        response = _snapshot(request, **query)
        patch_vary_headers(response, ["Accept", "Accept-Encoding"])
        return response

    @describe_call(
        "addSkip",
        "Let consumers pass over what matches",
        request=serializers.NewSkip,
        answer=serializers.AddedSkip,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Adds a skip; the same matcher for the same group and version renews it.

        A renewed skip has the new values; `renews` has those that it had, for a key
        that may read skips.
        A rule that matches each of the last 200 messages, or more, is refused unless
        `everything` is true.
        """
        members = serializers.NewSkip.parse(request.data)
        name = members.pop("topic")
        skip_addition_and_removal.require_topic_right(
            topic=name, principal=self.principal
        )
        topic = brokers.topics_named(names=[name])[name]
        skip, renews = skip_addition_and_removal.add(
            topic=topic, **members, principal=self.principal, now=clock.now()
        )
        if not self.principal.may(Scope.SKIPS_READ):
            renews = None
        where = reverse("api-skip", args=[skip.pk])
        return Response(
            shapes.added_skip(ListedSkip.of(skip), renews),
            status=HTTPStatus.CREATED,
            headers={"Location": where},
        )


def _snapshot(
    request: Request, *, topic: str, consumer_group: str | None
) -> HttpResponse:
    """Answer a skip list in lines where `Accept` names their type, else in JSON."""
    if not _accepts(request, "Accept", MEDIA_TYPE):
        body = skip_list_cache.as_json(topic=topic, consumer_group=consumer_group)
        return HttpResponse(body, content_type=Exact.media_type)
    lines = skip_list_cache.as_lines(topic=topic, consumer_group=consumer_group)
    if not _accepts(request, "Accept-Encoding", "gzip"):
        return HttpResponse(gzip.decompress(lines), content_type=MEDIA_TYPE)
    headers = {"Content-Encoding": "gzip"}
    return HttpResponse(lines, content_type=MEDIA_TYPE, headers=headers)


def _accepts(request: Request, header: str, value: str) -> bool:
    """Tell whether `Accept` or `Accept-Encoding` lists this value, not at q=0."""
    for each in request.headers.get(header, "").lower().split(","):
        name, _, quality = each.partition(";")
        if name.strip() == value:
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", quality)
    return False


class Skip(View):
    scopes: ClassVar = {"DELETE": Scope.SKIPS_WRITE}
    renderer_classes = (Exact,)

    @describe_call(
        "removeSkip",
        "Let consumers handle it again",
        request=serializers.Unskip,
        answer=serializers.Skip,
        refusals=[HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def delete(self, request: Request, skip_id: int) -> Response:
        """Ends a skip. Idempotent: one that has ended already stays as it is."""
        skip = skip_addition_and_removal.remove(
            skip_id=skip_id,
            **serializers.Unskip.parse(request.data),
            principal=self.principal,
            now=clock.now(),
        )
        return Response(shapes.skip(ListedSkip.of(skip)))


class Applied(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @describe_call(
        "countSkipped",
        "Count what consumers passed over",
        request=serializers.AppliedReports,
        answer=serializers.AppliedAnswers,
    )
    def post(self, request: Request) -> Response:
        """Counts how often skips were applied; a member with `report` only once."""
        members = list_of(request.data, "applied")
        batch = Batch(members, parse_applied, shapes.rejected_member)
        counted = applied_skips.count(
            applied=batch.unanswered, principal=self.principal, now=clock.now()
        )
        answers = [
            shapes.applied_skip_answer(report, is_known=is_known)
            for report, is_known in zip(batch.unanswered, counted, strict=True)
        ]
        return Response({"results": batch.in_order(answers)})


class Stream(View):
    scopes: ClassVar = {"GET": Scope.SKIPS_READ}
    ignores_unknown_parameters = True
    http_method_names = ["get"]

    @describe_call(
        "followSkips",
        "Follow what changes, as server-sent events",
        answer=OpenApiTypes.STR,
        parameters=FOLLOWED,
        refusals=[HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """Streams changes of skips after a snapshot, or from now on without `after`.

        - `skip`: a skip with its `revision`; it replaces one of the same id.
        - `suspect`: the same for a message that one consumer failed on and others may
          handle: handle it, and report it when you have. A `skip` of its id follows, at
          once where no other consumer is there, or an `unskip`.
        - `unskip`: `id`, `topic`, `revision`, `because` removed, expired, passed,
          handled (by another consumer) or doubted (its consumer paused).
        - `fence`: `client_name`, `sub_id`, `topic`, `epoch`: this position has a new
          holder. It has no id, and is sent only to readers that are connected.
        - `ping`: everything up to its id is sent. One comes at the start, and whenever
          nothing else was sent for 15 s.
        - `reset`: the events after your last one are unknown here; take a snapshot.

        A stream ends now and then, and at once with the key that opened it: continue
        after the id of the last event.
        """
        stream_params = StreamParams.parse(
            request.query_params, last_event_id=request.headers.get("Last-Event-ID")
        )
        for topic in stream_params.topics:
            skip_addition_and_removal.require_topic_right(
                topic=topic, principal=self.principal
            )
        if not hasattr(request, "scope"):
            raise Unavailable("This server cannot stream: run it under ASGI.")
        return StreamingHttpResponse(
            event_hub.events(stream_params, credential_of(request)),
            content_type=EVENT_STREAM,
            headers={"X-Accel-Buffering": "no"},
        )
