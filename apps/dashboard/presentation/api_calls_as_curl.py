"""The API call for what a page does, as a curl command to copy."""

from __future__ import annotations

import json
import shlex

from django.http import HttpRequest

_KEY = '-H "Authorization: Bearer $API_KEY"'


def get(request: HttpRequest, path: str, **query: str) -> str:
    """Write a GET of the API as a curl command; leave out empty parameters."""
    arguments = [
        f"--data-urlencode {shlex.quote(f'{name}={value}')}"
        for name, value in query.items()
        if value
    ]
    return _joined_lines(f"curl -fsS -G {_KEY}", *arguments, _address(request, path))


def post(request: HttpRequest, path: str, body: dict[str, object]) -> str:
    """Write a POST of the API with a JSON body as a curl command."""
    return _joined_lines(
        f"curl -fsS {_KEY}",
        '-H "Content-Type: application/json"',
        f"--data {shlex.quote(json.dumps(body))}",
        _address(request, path),
    )


def patch(request: HttpRequest, path: str, body: dict[str, object]) -> str:
    """Write a PATCH of the API with a JSON body as a curl command."""
    return _with_body("PATCH", request, path, body)


def delete(
    request: HttpRequest, path: str, body: dict[str, object] | None = None
) -> str:
    """Write a DELETE of the API, with a JSON body if any, as a curl command."""
    if body is None:
        return _joined_lines(f"curl -fsS -X DELETE {_KEY}", _address(request, path))
    return _with_body("DELETE", request, path, body)


def _with_body(
    method: str, request: HttpRequest, path: str, body: dict[str, object]
) -> str:
    """Write an API call with a JSON body as a curl command."""
    return _joined_lines(
        f"curl -fsS -X {method} {_KEY}",
        '-H "Content-Type: application/json"',
        f"--data {shlex.quote(json.dumps(body))}",
        _address(request, path),
    )


def _address(request: HttpRequest, path: str) -> str:
    """Return the whole URL of an API path, quoted for a shell."""
    return shlex.quote(request.build_absolute_uri(path))


def _joined_lines(*parts: str) -> str:
    """Join the parts of a curl command, each on a line of its own."""
    return " \\\n  ".join(parts)
