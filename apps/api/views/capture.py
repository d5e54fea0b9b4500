"""IN: what consumers report. Each member is answered for itself, in order."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.openapi import IDEMPOTENCY_KEY, REFUSED_KEY, described
from apps.api.parameters import base as asked
from apps.api.schemas import capture as schemas
from apps.api.shapes import capture as shapes
from apps.api.shapes.base import Shape
from apps.api.views.base import View
from apps.capture.intake import guards
from apps.capture.intake import services as capture
from apps.capture.intake.services import CaptureAnswer
from apps.core import clock
from apps.team.rights import Scope


class Failures(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @described(
        "reportFailures",
        "Report messages that could not be processed",
        request=schemas.FailureReports,
        answer=schemas.Answers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """At most 1,000 in one request; one bad member never sinks the rest."""
        members = asked.members(request.data, "failures")
        return _answered(
            capture.capture(members=members, principal=self.principal, now=clock.now())
        )


class Confirmations(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @described(
        "confirmRedrives",
        "Tell that redriven messages were handled",
        request=schemas.Confirmations,
        answer=schemas.Answers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Idempotent; a redrive that is not ours is rejected."""
        members = asked.members(request.data, "confirmations")
        return _answered(
            capture.confirm(members=members, principal=self.principal, now=clock.now())
        )


class Counters(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @described(
        "countMessages",
        "Count what consumers did, minute by minute",
        request=schemas.CounterReports,
        answer=schemas.CounterAnswers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """A (reporter, sequence) counts once, however often it is sent.

        With them guards may tell how they are; the newest word of each is kept.
        """
        now, principal = clock.now(), self.principal
        members = asked.members(request.data, "counters")
        told = "guards" in request.data
        words = asked.members(request.data, "guards") if told else []
        counted = capture.count(members=members, principal=principal, now=now)
        answer = {"results": _shapes(counted)}
        if told:
            noted = guards.record_heartbeats(
                members=words, principal=principal, now=now
            )
            answer["guards"] = _shapes(noted)
        return Response(answer)


def _answered(answers: list[CaptureAnswer]) -> Response:
    return Response({"results": _shapes(answers)})


def _shapes(answers: list[CaptureAnswer]) -> list[Shape]:
    return [shapes.answer(answer) for answer in answers]
