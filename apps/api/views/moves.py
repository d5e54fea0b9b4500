"""HOW FAR consumers have read: move a position by hand."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.openapi import IDEMPOTENCY_KEY, REFUSED_KEY, described
from apps.api.parameters.moves import MoveRequest
from apps.api.serializers import moves as serializers
from apps.api.shapes import moves as shapes
from apps.api.views.base import View
from apps.core import clock
from apps.team.rights import Scope
from apps.triage.services import moves


class Move(View):
    scopes: ClassVar = {"POST": Scope.POSITIONS_WRITE}

    @described(
        "movePosition",
        "Move a position back or forward, or see what that would do",
        request=serializers.MoveAsk,
        answer=serializers.MoveDone,
        parameters=[IDEMPOTENCY_KEY],
        refusals=[HTTPStatus.NOT_FOUND, *REFUSED_KEY],
    )
    @idempotent
    def post(self, request: Request, position_id: int) -> Response:
        """The move fences its holder, which resumes at the new place.

        Refused while the holder has settled within 2 minutes, unless `fence` is true.
        """
        move, now = MoveRequest.parse(request.data), clock.now()
        if move.dry_run:
            review = moves.review(
                position_id=position_id,
                wish=move.wish,
                principal=self.principal,
                now=now,
            )
            return Response(shapes.moved(review, None, now=now))
        review, done = moves.move(
            position_id=position_id,
            wish=move.wish,
            reason=move.reason,
            fence=move.fence,
            principal=self.principal,
            now=now,
        )
        return Response(shapes.moved(review, done, now=now))
