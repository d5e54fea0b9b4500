"""Serve the OpenAPI schema, and a page for people that shows it."""

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

from apps.api import openapi_reference_page
from apps.api.permissions import SIGNED_IN
from apps.api.views.base import View

_LOCK = Lock()


class OpenApiSchema(View):
    scopes: ClassVar = {"GET": SIGNED_IN}
    schema = None

    def get(self, _: Request) -> Response:
        return Response(schema())


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    # A view of Django, not of rest_framework: it redirects strangers to the sign-in.
    return render(
        request,
        "api/reference_page.html",
        {"reference": openapi_reference_page.from_schema(schema())},
    )


def schema() -> dict[str, Any]:
    """Give the schema, which is generated once.

    The generator is not thread-safe while it loads its extensions: of two threads that
    generate their first schema at the same time, one would fail.
    """
    with _LOCK:
        return _generate()


@cache
def _generate() -> dict[str, Any]:
    generator: Any = SchemaGenerator
    generated: dict[str, Any] = generator().get_schema(public=True)
    return generated
