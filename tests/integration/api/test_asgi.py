"""What only a real server does: bodies in chunks, and answers that flow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application

from apps.core import clock
from apps.poison import reading
from apps.team.rights import Scope
from tests.integration.api.caller import Caller, program
from tests.reports import failure, poisons

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def now() -> datetime:
    return clock.now()


def ask(
    caller: Caller,
    method: str,
    path: str,
    *,
    pieces: Sequence[bytes] = (b"",),
    **headers: str,
) -> tuple[int, list[bytes]]:
    """Speak ASGI, as uvicorn does; give the status and the body as it came."""
    named = {**caller.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(n.lower().encode(), v.encode()) for n, v in named.items()],
        "server": ("127.0.0.1", 80),
    }
    return asyncio.run(_spoken(scope, pieces))


async def _spoken(
    scope: dict[str, Any], pieces: Sequence[bytes]
) -> tuple[int, list[bytes]]:
    talk = ApplicationCommunicator(get_asgi_application(), scope)
    for place, piece in enumerate(pieces, start=1):
        more = place < len(pieces)
        await talk.send_input(
            {"type": "http.request", "body": piece, "more_body": more}
        )
    start = await talk.receive_output(10)
    received, more = [], True
    while more:
        message = await talk.receive_output(10)
        received.append(message.get("body", b""))
        more = message.get("more_body", False)
    await talk.wait()
    return start["status"], received


def test_a_body_in_chunks_without_a_length_is_read(now: datetime) -> None:
    raw = json.dumps({"failures": [failure(now)]}).encode()
    pieces = [raw[at : at + 100] for at in range(0, len(raw), 100)]

    status, received = ask(
        program(Scope.CAPTURE_WRITE),
        "POST",
        "/api/v1/failures",
        pieces=pieces,
        Content_Type="application/json",
        Transfer_Encoding="chunked",
    )

    assert status == 200
    assert json.loads(b"".join(received))["results"][0]["status"] == "created"


def test_a_body_leaves_in_pieces_and_is_never_held_whole(now: datetime) -> None:
    content = bytes(range(256)) * (3 * reading.CHUNK // 256 + 1)
    [poison] = poisons(now, 1, body=content)

    status, received = ask(
        program(Scope.BODIES_READ), "GET", f"/api/v1/poisons/{poison.pk}/body"
    )

    assert status == 200
    assert b"".join(received) == content
    assert len(received) > len(content) // reading.CHUNK


def test_a_list_is_answered_there_too(now: datetime) -> None:
    poisons(now, 1)

    status, received = ask(program(Scope.POISONS_READ), "GET", "/api/v1/poisons")

    assert (status, len(json.loads(b"".join(received))["results"])) == (200, 1)
