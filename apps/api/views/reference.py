"""What this API is: the OpenAPI schema, and a page for people made from it."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request
from rest_framework.response import Response

from apps.api import reference
from apps.api.permissions import SIGNED_IN
from apps.api.views.base import View

_MAKING = Lock()


class Schema(View):
    scopes: ClassVar = {"GET": SIGNED_IN}
    schema = None

    def get(self, _: Request) -> Response:
        return Response(schema())


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    # No view of rest_framework: who is not signed in is sent to the sign-in.
    return render(request, "api/docs.html", {"reference": reference.of(schema())})


def schema() -> dict[str, Any]:
    """Give the schema, which is made once.

    Two threads that made their first at the same time would meet in the generator's
    search for its extensions, and one of them would fail.
    """
    with _MAKING:
        return _made()


@cache
def _made() -> dict[str, Any]:
    generator: Any = SchemaGenerator
    made: dict[str, Any] = generator().get_schema(public=True)
    return made
