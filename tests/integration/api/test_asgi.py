"""The API over ASGI: chunked request bodies, and streamed answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.decorators import login_not_required
from django.core import signals
from django.db import connection
from django.http import HttpRequest, StreamingHttpResponse
from django.urls import path as address

from apps.poison import message_contents
from apps.team.rights import Scope
from poisonweb.one_thread_asgi_request_handler import ThreadedHandler
from tests.failure_report_builders import failure, poisons
from tests.integration.api.schema_checking_client import Caller, program

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 60.0


def ask(
    caller: Caller,
    method: str,
    path: str,
    *,
    pieces: Sequence[bytes] = (b"",),
    **headers: str,
) -> tuple[int, list[bytes]]:
    """Send a request over ASGI, as uvicorn does; give the status and body chunks."""
    named = {**caller.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
    return asyncio.run(spoken(ThreadedHandler(), scope_of(method, path, named), pieces))


def scope_of(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(n.lower().encode(), v.encode()) for n, v in headers.items()],
        "server": ("127.0.0.1", 80),
    }


async def spoken(
    application: ThreadedHandler, scope: dict[str, Any], pieces: Sequence[bytes]
) -> tuple[int, list[bytes]]:
    talk = ApplicationCommunicator(application, scope)
    for place, piece in enumerate(pieces, start=1):
        more = place < len(pieces)
        await talk.send_input(
            {"type": "http.request", "body": piece, "more_body": more}
        )
    start = await talk.receive_output(PATIENCE)
    received, more = [], True
    while more:
        message = await talk.receive_output(PATIENCE)
        received.append(message.get("body", b""))
        more = message.get("more_body", False)
    await talk.wait(PATIENCE)
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


def test_a_body_is_sent_in_pieces_and_never_held_whole(now: datetime) -> None:
    content = bytes(range(256)) * (3 * message_contents.CHUNK // 256 + 1)
    [poison] = poisons(now, 1, body=content)

    status, received = ask(
        program(Scope.BODIES_READ), "GET", f"/api/v1/poisons/{poison.pk}/body"
    )

    assert status == 200
    assert b"".join(received) == content
    assert len(received) > len(content) // message_contents.CHUNK


def test_a_list_is_answered_over_asgi(now: datetime) -> None:
    poisons(now, 1)

    status, received = ask(program(Scope.POISONS_READ), "GET", "/api/v1/poisons")

    assert (status, len(json.loads(b"".join(received))["results"])) == (200, 1)


def test_a_request_runs_in_one_reused_thread_and_keeps_no_session(
    now: datetime,
) -> None:
    caller, application = program(Scope.POISONS_READ), ThreadedHandler()
    begun, ended = list[str](), list[str]()
    has_session = list[bool]()

    def begin(**_: object) -> None:
        begun.append(threading.current_thread().name)

    def end(**_: object) -> None:
        ended.append(threading.current_thread().name)
        has_session.append(connection.connection is not None)

    async def ask_often() -> list[int]:
        scope = scope_of("GET", "/api/v1/poisons", caller.headers)
        return [(await spoken(application, scope, [b""]))[0] for _ in range(20)]

    signals.request_started.connect(begin, sender=ThreadedHandler)
    signals.request_finished.connect(end, sender=ThreadedHandler)
    try:
        statuses = asyncio.run(ask_often())
    finally:
        signals.request_started.disconnect(begin, sender=ThreadedHandler)
        signals.request_finished.disconnect(end, sender=ThreadedHandler)

    assert statuses == [200] * 20
    assert begun == ended
    assert threading.main_thread().name not in begun
    assert len(set(begun)) < len(begun)
    assert has_session == [False] * 20


async def pieces_that_break_off() -> AsyncIterator[bytes]:
    yield b"the first half"
    raise ConnectionResetError


@login_not_required
def breaks_off(_: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(pieces_that_break_off())


urlpatterns = [address("breaks-off", breaks_off)]


def test_an_answer_that_breaks_off_raises_and_is_not_completed(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__

    async def ask_for_it() -> list[dict[str, Any]]:
        talk = ApplicationCommunicator(
            ThreadedHandler(), scope_of("GET", "/breaks-off", {})
        )
        await talk.send_input({"type": "http.request"})
        events = [
            await talk.receive_output(PATIENCE),
            await talk.receive_output(PATIENCE),
        ]
        with pytest.raises(ConnectionResetError):
            await talk.wait(PATIENCE)
        assert talk.output_queue.empty()
        return events

    start, piece = asyncio.run(ask_for_it())

    assert start["status"] == 200
    assert piece == {
        "type": "http.response.body",
        "body": b"the first half",
        "more_body": True,
    }
