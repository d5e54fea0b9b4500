"""List, open and settle positions: how far consumers have read."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.keyset_pagination import PageWindow
from apps.api.list_in_request_body import list_of, members_of
from apps.api.openapi import IDEMPOTENCY_KEY, PAGING, REFUSED_KEY, describe_call
from apps.api.response_dicts import position_open_and_settle_answers as shapes
from apps.api.selectors import consumer_positions
from apps.api.serializers import consumer_positions as serializers
from apps.api.views.base import View, list_response
from apps.bookmarks.consumer_request_parsing import Holder
from apps.bookmarks.services import position_opening, position_settling
from apps.core import clock
from apps.team.rights import Scope


class Positions(View):
    scopes: ClassVar = {"GET": Scope.POSITIONS_READ}

    @describe_call(
        "listPositions",
        "List how far each consumer has read, by its broker or by what it settled",
        answer=serializers.Positions,
        parameters=[serializers.PositionQuery, *PAGING],
        refusals=[HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY],
    )
    def get(self, request: Request) -> Response:
        """Lists positions. One whose consumer has settled nothing yet has no marks."""
        query = serializers.PositionQuery.parse_query(request.query_params)
        window = PageWindow.parse(request, name="positions")
        page, details = consumer_positions.find(window, self.principal, **query)
        return list_response(page, serializers.Position(details, many=True).data)


class Open(View):
    scopes: ClassVar = {"POST": Scope.POSITIONS_WRITE}

    @describe_call(
        "openPositions",
        "Take positions over, and learn where to resume",
        request=serializers.Holder,
        answer=serializers.Opened,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Opens positions, and fences their previous holder.

        Without a sub id, opens all of the client. A position that is named in full, by
        sub id and topic, is created if missing.
        """
        holder = Holder.parse(members_of(request.data))
        opened = position_opening.open_positions(
            holder=holder, principal=self.principal, now=clock.now()
        )
        return Response(shapes.opened_positions_dict(opened))


class Settle(View):
    scopes: ClassVar = {"POST": Scope.POSITIONS_WRITE}

    @describe_call(
        "settlePositions",
        "Tell what was received, settled and persisted",
        request=serializers.PositionUpdates,
        answer=serializers.PositionAnswers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Takes at most 10,000 position updates; a bad one does not affect the others.

        Merging is a union, so nothing goes back and no order matters. Numbers are
        sparse: a message is settled as the run from the number after the one received
        before it (0 for the first ever) up to its own, so that runs adjoin where
        nothing was handed out between. The watermark is the end of the run from 0.
        """
        answers = position_settling.settle(
            members=list_of(request.data, "updates", most=serializers.MOST_UPDATES),
            principal=self.principal,
            now=clock.now(),
        )
        return Response(
            {"results": [shapes.settle_answer_dict(answer) for answer in answers]}
        )
