"""Read poisons, and the exact bytes of one message."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.keyset_pagination import PageWindow
from apps.api.openapi import PAGING, describe_call
from apps.api.selectors import poisons
from apps.api.serializers import poisons as serializers
from apps.api.serializers.search_query import SearchParams
from apps.api.views.base import PostedBySessions, View, list_response
from apps.core import clock
from apps.core.streaming_responses import response_chunks
from apps.poison import message_contents
from apps.team.rights import Scope


class Poisons(View):
    scopes: ClassVar = {"GET": Scope.POISONS_READ}

    @describe_call(
        "listPoisons",
        "List poisons, the latest failure first",
        answer=serializers.Poisons,
        parameters=[SearchParams, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        window = PageWindow.parse(request, name="poisons")
        query = SearchParams.parse_query(request.query_params)
        page = poisons.matching(query, window, self.principal)
        context = {"now": clock.now()}
        rows = serializers.Poison(page.rows, many=True, context=context)
        return list_response(page, rows.data)


class Poison(View):
    scopes: ClassVar = {"GET": Scope.POISONS_READ}

    @describe_call(
        "readPoison",
        "Read one poison with its failures, redrives and audit entries",
        answer=serializers.PoisonDetail,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, _: Request, poison_id: int) -> Response:
        """Shows a poison with its headers' names: values are secret like the body."""
        detail = poisons.one(poison_id, self.principal)
        context = {"now": clock.now()}
        return Response(serializers.PoisonDetail(detail, context=context).data)


class Body(PostedBySessions):
    scopes: ClassVar = {"GET": Scope.BODIES_READ, "POST": Scope.BODIES_READ}

    @describe_call(
        "downloadBody",
        "Download the exact bytes of a message",
        answer=OpenApiTypes.BINARY,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def get(self, request: Request, poison_id: int) -> StreamingHttpResponse:
        """Sends a poison's body and audits it. A session gets a 403: POST instead."""
        return self._download(request, poison_id)

    @describe_call(
        "downloadBodyByPost",
        "Download the exact bytes of a message, also by a session",
        answer=OpenApiTypes.BINARY,
        refusals=[HTTPStatus.NOT_FOUND],
    )
    def post(self, request: Request, poison_id: int) -> StreamingHttpResponse:
        """Sends a poison's body, and writes an audit entry."""
        return self._download(request, poison_id)

    def _download(self, request: Request, poison_id: int) -> StreamingHttpResponse:
        poison, chunks = message_contents.download(
            poison_id=poison_id, principal=self.principal, now=clock.now()
        )
        headers = {
            "Content-Length": str(poison.size),
            "Content-Disposition": f'attachment; filename="message-{poison.pk}.bin"',
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingHttpResponse(
            response_chunks(request, chunks),
            content_type="application/octet-stream",
            headers=headers,
        )
