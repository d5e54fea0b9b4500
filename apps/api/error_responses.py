"""Render every error as a problem of RFC 9457, with its HTTP status of STATUS."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404
from django.http.request import UnreadablePostError
from rest_framework.exceptions import APIException
from rest_framework.response import Response

from apps.api.request_exceptions import (
    InvalidMembers,
    Malformed,
    TooLarge,
    UnknownEncoding,
    Unreadable,
)
from apps.api.selectors import triage_operations
from apps.api.serializers.operation_previews import Preview
from apps.core import clock
from apps.core.errors import (
    Absent,
    Forbidden,
    Invalid,
    PoisonwebError,
    Refused,
    Unavailable,
)
from apps.core.request_id_and_proxy_warning_middleware import request_id
from apps.core.text_cleaning import storable
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.services.preview_summaries import summarize

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 5


STATUS: dict[type[Exception], HTTPStatus] = {
    Unreadable: HTTPStatus.BAD_REQUEST,
    UnreadablePostError: HTTPStatus.BAD_REQUEST,
    Malformed: HTTPStatus.BAD_REQUEST,
    Forbidden: HTTPStatus.FORBIDDEN,
    PermissionDenied: HTTPStatus.FORBIDDEN,
    Absent: HTTPStatus.NOT_FOUND,
    Http404: HTTPStatus.NOT_FOUND,
    Refused: HTTPStatus.CONFLICT,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnknownEncoding: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Invalid: HTTPStatus.UNPROCESSABLE_ENTITY,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    OperationalError: HTTPStatus.SERVICE_UNAVAILABLE,
    InterfaceError: HTTPStatus.SERVICE_UNAVAILABLE,
    Exception: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def problem(error: Exception, context: Mapping[str, Any]) -> Response:
    """Render an error of the API; rest_framework calls this for every exception."""
    request_number = request_id(context["request"])
    status = _status(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s failed: %s", request_number, error, exc_info=error)
    members = {
        "type": _type(error),
        "title": status.phrase,
        "status": status.value,
        "detail": storable(_detail(error, status)),
        "errors": _member_errors(error),
        "request_id": request_number,
        **_extensions(error, context),
    }
    return Response(
        members, status=status, headers=_headers(error), content_type=MEDIA_TYPE
    )


def _status(error: Exception) -> HTTPStatus:
    """Return the HTTP status of an error of the API."""
    if isinstance(error, APIException):
        return HTTPStatus(error.status_code)
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def _type(error: Exception) -> str:
    """Name an error's kind of problem: programs tell equal statuses apart by it."""
    if not isinstance(error, PoisonwebError):
        return "about:blank"
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__)
    return f"urn:poisonweb:problem:{error.problem or name.lower()}"


def _detail(error: Exception, status: HTTPStatus) -> str:
    """Return the text of an error; of an unexpected one only what to do."""
    # An unexpected error reveals internals (ASVS 16.5.1): only the log has its text.
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return "Something went wrong here; give this request_id to the operator."
    if isinstance(error, PoisonwebError):
        return str(error)
    if isinstance(error, APIException):
        return str(error.detail)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "Postgres is away or overloaded; try again in a moment."
    return status.description


def _member_errors(error: Exception) -> list[dict[str, str]]:
    """List the wrong or refused members of a request, with their JSON Pointers."""
    if isinstance(error, Refused) and error.field:
        return [{"pointer": f"/{error.field}", "detail": storable(str(error))}]
    if not isinstance(error, Invalid):
        return []
    faults = [(error.pointer, error.remedy)]
    if isinstance(error, InvalidMembers):
        faults = list(error.faults)
    return [
        {"pointer": storable(pointer), "detail": storable(remedy)}
        for pointer, remedy in faults
    ]


def _extensions(error: Exception, context: Mapping[str, Any]) -> dict[str, object]:
    """Return an error's member `preview`: a new one where the confirmed one is stale.

    Return {} for any other error.
    """
    if not isinstance(error, Stale):
        return {}
    if error.new_preview is None:
        return {"preview": None}
    summary = summarize(operation=error.new_preview)
    principal: Principal = context["request"].auth
    now = clock.now()
    skipped_again = triage_operations.skipped_again(summary, principal, now=now)
    data = Preview(summary, context={"now": now, "skipped_again": skipped_again}).data
    return {"preview": data}


def _headers(error: Exception) -> dict[str, str]:
    """Return an error's `Retry-After` or `WWW-Authenticate`, where it needs one."""
    if isinstance(error, OperationalError | InterfaceError | Unavailable):
        return {"Retry-After": str(RETRY_AFTER_SECONDS)}
    challenge = getattr(error, "auth_header", None)
    return {"WWW-Authenticate": challenge} if challenge else {}
