"""The API call for what a page does, as a curl command to copy."""

from __future__ import annotations

import json
import shlex

from django.http import HttpRequest

_KEY = '-H "Authorization: Bearer $API_KEY"'


def get(request: HttpRequest, path: str, **query: str) -> str:
    arguments = [
        f"--data-urlencode {shlex.quote(f'{name}={value}')}"
        for name, value in query.items()
        if value
    ]
    return _lines(f"curl -fsS -G {_KEY}", *arguments, _address(request, path))


def post(request: HttpRequest, path: str, body: dict[str, object]) -> str:
    return _lines(
        f"curl -fsS {_KEY}",
        '-H "Content-Type: application/json"',
        f"--data {shlex.quote(json.dumps(body))}",
        _address(request, path),
    )


def patch(request: HttpRequest, path: str, body: dict[str, object]) -> str:
    return _with_body("PATCH", request, path, body)


def delete(
    request: HttpRequest, path: str, body: dict[str, object] | None = None
) -> str:
    if body is None:
        return _lines(f"curl -fsS -X DELETE {_KEY}", _address(request, path))
    return _with_body("DELETE", request, path, body)


def _with_body(
    method: str, request: HttpRequest, path: str, body: dict[str, object]
) -> str:
    return _lines(
        f"curl -fsS -X {method} {_KEY}",
        '-H "Content-Type: application/json"',
        f"--data {shlex.quote(json.dumps(body))}",
        _address(request, path),
    )


def _address(request: HttpRequest, path: str) -> str:
    return shlex.quote(request.build_absolute_uri(path))


def _lines(*parts: str) -> str:
    return " \\\n  ".join(parts)
