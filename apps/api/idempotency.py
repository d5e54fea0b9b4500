"""`Idempotency-Key`: the same POST sent twice acts once and gets the same answer.

One transaction holds the lock of the key, the changes of the request and the stored
answer. A crash rolls all of it back, so the next try acts; after the commit, the stored
answer is replayed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.db import connection, transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.api.bounded_json_parser import DIGEST
from apps.api.request_exceptions import Malformed
from apps.core import clock
from apps.core.advisory_locks import key_of
from apps.core.errors import Invalid, PoisonwebError, Refused
from apps.core.hashed_ids import digest_of, raw
from apps.team.models import IdempotencyKey
from apps.team.rights import Principal

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
STORED_HEADERS = ("Location",)
KEY_LIMIT = 255

V = TypeVar("V", bound=APIView)
P = ParamSpec("P")
Act = Callable[Concatenate[V, Request, P], Response]


class StillRunning(Refused):
    """A request with this Idempotency-Key is still running; try again in a moment."""


class KeyReused(Invalid):
    """This Idempotency-Key was used for another request."""


def idempotent(act: Act[V, P]) -> Act[V, P]:
    """Let a POST with an Idempotency-Key act once, and replay its answer afterwards.

    Refusals are not stored: they changed nothing, and a later try may succeed.
    """

    @wraps(act)
    def once(
        view: V, request: Request, /, *args: P.args, **kwargs: P.kwargs
    ) -> Response:
        key = request.headers.get(HEADER)
        if key is None:
            return act(view, request, *args, **kwargs)
        actor = str(cast(Principal, request.auth).actor)
        fingerprint = _fingerprint(request)
        with transaction.atomic():
            _lock(actor, _check_key(key))
            replayed = _replay(actor, key, fingerprint)
            if replayed is not None:
                return replayed
            try:
                response = act(view, request, *args, **kwargs)
            except PoisonwebError as refusal:
                # Not re-raised: a rollback would lose the new preview it may carry.
                return view.handle_exception(refusal)
            _store(actor, key, fingerprint, response, now=clock.now())
        return response

    return once


def _check_key(key: str) -> str:
    """Return the idempotency key; raises Malformed if too long or not ASCII."""
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= KEY_LIMIT):
        raise Malformed(HEADER, f"send 1 to {KEY_LIMIT} printable ASCII characters")
    return key


def _fingerprint(request: Request) -> bytes:
    """Hash an API request's method, path and inflated body to recognize repeats."""
    request.data  # noqa: B018 - parsing the body stores its digest in META
    path = raw(request.get_full_path())
    return digest_of(raw(request.method or ""), path, request.META.get(DIGEST, b""))


def _lock(actor: str, key: str) -> None:
    """Lock an idempotency key until the transaction ends.

    Raises StillRunning while another request has it.
    """
    with connection.cursor() as cursor:
        name = f"idempotency:{actor}:{key}"
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [key_of(name)])
        if not cursor.fetchone()[0]:
            raise StillRunning


def _replay(actor: str, key: str, fingerprint: bytes) -> Response | None:
    """Return the answer stored under an idempotency key, or None.

    Raises KeyReused if the key was used for another request.
    """
    stored = IdempotencyKey.objects.filter(actor=actor, key=key).first()
    if stored is None:
        return None
    if bytes(stored.fingerprint) != fingerprint:
        raise KeyReused(HEADER, "it was used for another request; make a new one")
    answer: dict[str, Any] = json.loads(bytes(stored.answer))
    headers = {**answer["headers"], REPLAYED_HEADER: "true"}
    return Response(answer["data"], status=stored.status, headers=headers)


def _store(
    actor: str, key: str, fingerprint: bytes, response: Response, *, now: datetime
) -> None:
    """Store the answer of a request under its idempotency key."""
    headers = {name: response[name] for name in STORED_HEADERS if name in response}
    answer = {"data": response.data, "headers": headers}
    IdempotencyKey.objects.create(
        actor=actor,
        key=key,
        fingerprint=fingerprint,
        status=response.status_code,
        answer=JSONRenderer().render(answer),
        created_at=now,
    )
