"""Take the reports of consumers, and answer each member in its order."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from apps.api.idempotency import idempotent
from apps.api.list_in_request_body import list_of
from apps.api.openapi import IDEMPOTENCY_KEY, REFUSED_KEY, describe_call
from apps.api.response_dicts import consumer_report_answer as shapes
from apps.api.response_dicts.json_object_type import Shape
from apps.api.serializers import consumer_reports as serializers
from apps.api.views.base import View
from apps.capture.intake import guard_heartbeats
from apps.capture.intake import services as capture
from apps.capture.intake.services import CaptureAnswer
from apps.core import clock
from apps.team.rights import Scope


class Failures(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @describe_call(
        "reportFailures",
        "Report messages that could not be processed",
        request=serializers.FailureReports,
        answer=serializers.Answers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Takes at most 1,000 failures; a bad member does not affect the others."""
        members = list_of(request.data, "failures")
        return _response(
            capture.capture(members=members, principal=self.principal, now=clock.now())
        )


class Confirmations(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @describe_call(
        "confirmRedrives",
        "Tell that redriven messages were handled",
        request=serializers.Confirmations,
        answer=serializers.Answers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Confirms redrives, idempotently; an unknown redrive is rejected."""
        members = list_of(request.data, "confirmations")
        return _response(
            capture.confirm(members=members, principal=self.principal, now=clock.now())
        )


class Counters(View):
    scopes: ClassVar = {"POST": Scope.CAPTURE_WRITE}

    @describe_call(
        "countMessages",
        "Count what consumers did, minute by minute",
        request=serializers.CounterReports,
        answer=serializers.CounterAnswers,
        parameters=[IDEMPOTENCY_KEY],
        refusals=REFUSED_KEY,
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Counts messages; a (reporter, sequence) once, however often it is sent.

        Guards may send their state with the counts; the newest of each is stored.
        """
        now, principal = clock.now(), self.principal
        members = list_of(request.data, "counters")
        has_guards = "guards" in request.data
        heartbeats = list_of(request.data, "guards") if has_guards else []
        counted = capture.count(members=members, principal=principal, now=now)
        body = {"results": _shapes(counted)}
        if has_guards:
            noted = guard_heartbeats.record_heartbeats(
                members=heartbeats, principal=principal, now=now
            )
            body["guards"] = _shapes(noted)
        return Response(body)


def _response(answers: list[CaptureAnswer]) -> Response:
    return Response({"results": _shapes(answers)})


def _shapes(answers: list[CaptureAnswer]) -> list[Shape]:
    return [shapes.answer(answer) for answer in answers]
