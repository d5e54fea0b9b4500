"""The base classes of the views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

from django.http import HttpRequest
from rest_framework.exceptions import NotFound
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.api import query_parameters
from apps.api.authentication import SignedInAuthentication
from apps.api.keyset_pagination import Page, Row
from apps.api.permissions import SIGNED_IN, RequiredScope
from apps.core.errors import Forbidden
from apps.team.rights import Principal


class OnlyJSON(DefaultContentNegotiation):
    """Answer in JSON whatever the `Accept` header names."""

    def select_renderer(
        self,
        _: Request,
        renderers: Iterable[BaseRenderer],
        __: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        only = next(iter(renderers))
        return only, only.media_type or ""


class View(APIView):
    """A call; `scopes` names the scope that each method requires.

    `ignores_unknown_parameters`: of its query, as consumers of a later release send
    parameters that this one does not know.
    """

    scopes: ClassVar[Mapping[str, RequiredScope]]
    ignores_unknown_parameters: ClassVar = False
    http_method_names = sorted({"delete", "get", "head", "patch", "post"})
    content_negotiation_class = OnlyJSON

    def initialize_request(
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> Request:
        # A chunked body has no length: rest_framework would take it for empty.
        if "HTTP_TRANSFER_ENCODING" in request.META:
            request.META["CONTENT_LENGTH"] = "-1"
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        method = getattr(self, str(request.method).lower(), None)
        parameters = getattr(method, "query_parameters", ())
        if parameters and not self.ignores_unknown_parameters:
            query_parameters.refuse_unknown(request.query_params, parameters)

    @property
    def default_response_headers(self) -> dict[str, str]:
        return {**super().default_response_headers, "Cache-Control": "no-store"}

    @property
    def principal(self) -> Principal:
        return cast(Principal, self.request.auth)


class PostedBySessions(View):
    """A call that reads, but also writes to the audit trail or connects to a broker.

    A browser sends its session with a link on another site, too (SameSite=Lax), so the
    author of that link would act in the person's name. Therefore a key may GET, and a
    session has to POST, which requires the CSRF token.
    """

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        by_session = isinstance(
            request.successful_authenticator, SignedInAuthentication
        )
        if by_session and request.method in {"GET", "HEAD"}:
            raise Forbidden("With a session, send this as POST with the CSRF token.")


class Unknown(View):
    """Answer 404 to an authenticated caller for every path without a view."""

    scopes: ClassVar = {"GET": SIGNED_IN, "POST": SIGNED_IN}
    schema = None

    def get(self, _: Request, **__: str) -> Response:
        raise NotFound

    post = get


def list_response(page: Page[Row], results: Any) -> Response:
    addresses = {"next_url": page.next_url, "previous_url": page.previous_url}
    return Response({"results": results, "next": page.next, **addresses})
