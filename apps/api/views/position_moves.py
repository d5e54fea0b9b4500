"""Move a position by hand: how far a consumer has read."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.openapi import IDEMPOTENCY_KEY, REFUSED_KEY, describe_call
from apps.api.serializers import position_moves as serializers
from apps.api.views.base import View
from apps.bookmarks.models import Move as Row
from apps.core import clock
from apps.team.rights import Scope
from apps.triage.services import position_moves


class Move(View):
    scopes: ClassVar = {"POST": Scope.POSITIONS_WRITE}

    @describe_call(
        "movePosition",
        "Move a position back or forward, or see what that would do",
        request=serializers.MoveAsk,
        answer=serializers.MoveDone,
        parameters=[IDEMPOTENCY_KEY],
        refusals=[HTTPStatus.NOT_FOUND, *REFUSED_KEY],
    )
    @idempotent
    def post(self, request: Request, position_id: int) -> Response:
        """Moves a position; this fences its holder, which resumes at the new place.

        Refused while the holder has settled within 2 minutes, unless `fence` is true.
        """
        ask, now = serializers.MoveAsk.parse(request.data), clock.now()
        is_dry_run = ask.pop("dry_run")
        move: Row | None = None
        if is_dry_run:
            review = position_moves.review(
                position_id=position_id,
                wish=ask["wish"],
                principal=self.principal,
                now=now,
            )
        else:
            review, move = position_moves.move(
                position_id=position_id, **ask, principal=self.principal, now=now
            )
        done = {
            "review": review,
            "move": move,
            "epoch": move.epoch if move else review.position.epoch,
            "held": review.is_held(now),
        }
        return Response(serializers.MoveDone(done).data)
