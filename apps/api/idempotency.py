"""`Idempotency-Key`: the same POST sent twice acts once and is answered the same.

The lock of the key, what the request does and its answer are one transaction. A crash
anywhere leaves nothing of them, so the next try acts; after the commit it is replayed.
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

from apps.api.parsers import DIGEST
from apps.api.refusals import Malformed
from apps.core import clock
from apps.core.errors import Invalid, PoisonwebError, Refused
from apps.core.ids import digest_of, raw
from apps.core.lock import key_of
from apps.team.models import IdempotencyKey
from apps.team.rights import Principal

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
KEPT_HEADERS = ("Location",)
KEY_LIMIT = 255

V = TypeVar("V", bound=APIView)
P = ParamSpec("P")
Act = Callable[Concatenate[V, Request, P], Response]


class StillRunning(Refused):
    """A request with this Idempotency-Key is still running; try again in a moment."""


class KeyReused(Invalid):
    """This Idempotency-Key was used for another request."""


def idempotent(act: Act[V, P]) -> Act[V, P]:
    """Let a POST that bears an Idempotency-Key act once, and replay its answer.

    Only what was carried out is kept: a refusal changed nothing, and asking again may
    find a better moment.
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
            _lock(actor, _usable(key))
            replayed = _replay(actor, key, fingerprint)
            if replayed is not None:
                return replayed
            try:
                response = act(view, request, *args, **kwargs)
            except PoisonwebError as refusal:
                # Not raised on: the fresh preview that it may bring has to be kept.
                return view.handle_exception(refusal)
            _keep(actor, key, fingerprint, response, now=clock.now())
        return response

    return once


def _usable(key: str) -> str:
    if not (key.isascii() and key.isprintable() and 0 < len(key) <= KEY_LIMIT):
        raise Malformed(HEADER, f"send 1 to {KEY_LIMIT} printable ASCII characters")
    return key


def _fingerprint(request: Request) -> bytes:
    """Tell one request from another; how its body was compressed does not matter."""
    request.data  # noqa: B018 - reading the body leaves its digest behind
    path = raw(request.get_full_path())
    return digest_of(raw(request.method or ""), path, request.META.get(DIGEST, b""))


def _lock(actor: str, key: str) -> None:
    """Hold the key until the transaction ends; raises StillRunning if another does."""
    with connection.cursor() as cursor:
        name = f"idempotency:{actor}:{key}"
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [key_of(name)])
        if not cursor.fetchone()[0]:
            raise StillRunning


def _replay(actor: str, key: str, fingerprint: bytes) -> Response | None:
    kept = IdempotencyKey.objects.filter(actor=actor, key=key).first()
    if kept is None:
        return None
    if bytes(kept.fingerprint) != fingerprint:
        raise KeyReused(HEADER, "it was used for another request; make a new one")
    answer: dict[str, Any] = json.loads(bytes(kept.answer))
    headers = {**answer["headers"], REPLAYED: "true"}
    return Response(answer["data"], status=kept.status, headers=headers)


def _keep(
    actor: str, key: str, fingerprint: bytes, response: Response, *, now: datetime
) -> None:
    kept_headers = {name: response[name] for name in KEPT_HEADERS if name in response}
    answer = {"data": response.data, "headers": kept_headers}
    IdempotencyKey.objects.create(
        actor=actor,
        key=key,
        fingerprint=fingerprint,
        status=response.status_code,
        answer=JSONRenderer().render(answer),
        created_at=now,
    )
