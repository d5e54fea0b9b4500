"""Calls to back ends that answer well, badly, slowly, too much, or not at all."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from django.test import override_settings

from apps.brokers.adapter_contract import Header
from apps.core.errors import Invalid
from apps.redelivery.outbound import http_caller
from apps.redelivery.outbound.errors import LateAnswer, OutcomeUnknown, RequestNotSent
from apps.redelivery.outbound.http_caller import (
    MOST_LATE_ANSWERS,
    EndpointAnswer,
    EndpointRequest,
    HttpCaller,
)
from apps.redelivery.outbound.http_connection import (
    MOST_INTERIM_ANSWERS,
    BackEndConnection,
)
from apps.redelivery.outbound.target_url import EndpointTarget
from poisonweb.embedded.free_ports import free_port
from tests.unit.redelivery.scripted_back_end import (
    END,
    LOOPBACK,
    Script,
    ScriptedBackEnd,
    Visit,
    answering,
    back_end,
    closing,
)
from tests.waiting import wait_until

MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
ENCODED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(autouse=True)
def _loopback_allowed() -> Iterator[None]:
    with override_settings(POISONWEB_ENDPOINT_HOSTS=(LOOPBACK,)):
        yield


def request_to(
    server: ScriptedBackEnd | str,
    method: bytes = b"POST",
    path: bytes = b"/quotes",
    headers: list[Header] | None = None,
    body: bytes = b"",
) -> EndpointRequest:
    url = server if isinstance(server, str) else server.url
    return EndpointRequest(
        method=method,
        target=EndpointTarget.parse(url),
        path=path,
        headers=headers or [],
        body=body,
    )


@asynccontextmanager
async def calling(server: ScriptedBackEnd) -> AsyncIterator[EndpointAnswer]:
    async with (
        HttpCaller() as caller,
        caller.call(request_to(server), seconds=30) as answer,
    ):
        yield answer


async def body_of(server: ScriptedBackEnd) -> bytes:
    async with calling(server) as answer:
        body = await answer.read(MIB)
        assert answer.is_complete
        return body


async def connect(caller: HttpCaller, server: ScriptedBackEnd) -> None:
    """Leave an idle connection: a short limit is then no limit of connecting."""
    script, server.script = server.script, answering(OK)
    async with caller.call(request_to(server), seconds=30) as answer:
        await answer.read(MIB)
    server.script = script


# A request as it is written.


def test_a_request_is_written_raw_and_nothing_is_added_but_the_framing() -> None:
    headers = [(b"X-b", b"2"), (b"x-A", b"\xe9,\t1"), (b"X-b", b"1"), (b"host", b"x")]
    path = b"/base/a%2Fb/%7e;v=1//c?q=%2e&&x"

    async def call() -> None:
        async with HttpCaller() as caller:
            one = request_to(server, b"PATCH", path, headers, b"\0\r\n")
            async with caller.call(one, seconds=30) as answer:
                await answer.read(1)

    with back_end(answering(OK)) as server:
        asyncio.run(call())

    host = f"127.0.0.1:{server.port}".encode()
    assert server.requests == [
        b"PATCH " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nX-b: 2\r\n"
        b"x-A: \xe9,\t1\r\nX-b: 1\r\nContent-Length: 3\r\n\r\n\0\r\n"
    ]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        (b"GET", b"", None),
        (b"DELETE", b"", None),
        (b"POST", b"", b"0"),
        (b"PUT", b"", b"0"),
        (b"GET", b"x", b"1"),
        (b"QUERY", b"", b"0"),
    ],
)
def test_the_length_is_written_where_a_body_is_usual(
    method: bytes, body: bytes, length: bytes | None
) -> None:
    async def call() -> None:
        async with HttpCaller() as caller:
            forged = [(b"content-length", b"7"), (b"Transfer-Encoding", b"chunked")]
            one = request_to(server, method, headers=forged, body=body)
            async with caller.call(one, seconds=30):
                pass

    with back_end(answering(OK)) as server:
        asyncio.run(call())

    line = b"Content-Length: " + length + b"\r\n" if length else b""
    assert server.requests[0].endswith(b"\r\n" + line + b"\r\n" + body)
    assert server.requests[0].lower().count(b"content-length") == (length is not None)
    assert b"chunked" not in server.requests[0]


@pytest.mark.parametrize(
    "change",
    [
        *({"method": b"CONNECT"}, {"method": b"GET x"}, {"method": b""}),
        *({"path": b"/a b"}, {"path": b"/\r\nX: y"}, {"path": b""}, {"path": b"/\xff"}),
        *({"headers": [(b"a", b"b\r\nc: d")]}, {"headers": [(b"a b", b"")]}),
    ],
)
def test_what_is_no_http_is_refused_before_any_connection(
    change: dict[str, object],
) -> None:
    async def call() -> None:
        values = {"method": b"POST", "path": b"/", "headers": [], **change}
        target = EndpointTarget.parse(server.url)
        one = EndpointRequest(target=target, **values)  # type: ignore[arg-type]
        async with HttpCaller() as caller, caller.call(one, seconds=30):
            pass

    with back_end(answering(OK)) as server, pytest.raises(Invalid):
        asyncio.run(call())

    assert server.visits == 0


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with back_end(answering(OK)) as proxy, back_end(answering(OK)) as server:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)

        assert asyncio.run(body_of(server)) == b"ok"

    assert (proxy.visits, server.visits) == (0, 1)


# Answers.


@pytest.mark.parametrize(
    ("raw", "status", "reason", "body"),
    [
        (OK, 200, b"OK", b"ok"),
        (b"HTTP/1.1 204 \r\n\r\n", 204, b"", b""),
        (b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n", 503, b"", b""),
        (b"HTTP/1.1 599 \xe9\r\nContent-Length: 1\r\n\r\nx", 599, b"\xe9", b"x"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
            302,
            None,
            b"",
        ),
        (
            b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n" * MOST_INTERIM_ANSWERS + OK,
            200,
            None,
            b"ok",
        ),
        (CHUNKED + b"2;a=b\r\nok\r\n0\r\nX-Trailer: 1\r\n\r\n", 200, None, b"ok"),
        (ENCODED + b"no", 200, None, b"no"),
    ],
)
def test_each_whole_answer_is_an_answer(
    raw: bytes, status: int, reason: bytes | None, body: bytes
) -> None:
    async def call() -> None:
        async with calling(server) as answer:
            assert answer.status == status
            assert reason in {None, answer.reason}
            assert await answer.read(MIB) == body
            assert answer.is_complete

    with back_end(answering(raw)) as server:
        asyncio.run(call())

    assert len(server.requests) == 1, "no redirect is followed"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_without_length_ends_with_the_connection(version: bytes) -> None:
    raw = b"HTTP/" + version + b" 200 OK\r\n\r\nto the end"

    with back_end(closing(raw)) as server:
        assert asyncio.run(body_of(server)) == b"to the end"


def test_headers_of_an_answer_are_raw_in_order_with_duplicates() -> None:
    raw = b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nx-B:  \xe9 \r\nset-cookie: b\r\n"

    async def call() -> None:
        async with calling(server) as answer:
            assert answer.headers == [
                (b"Set-Cookie", b"a"),
                (b"x-B", b"\xe9"),
                (b"set-cookie", b"b"),
                (b"Content-Length", b"0"),
            ]

    with back_end(answering(raw, b"Content-Length: 0\r\n\r\n")) as server:
        asyncio.run(call())


def test_no_cookie_is_kept() -> None:
    raw = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"

    async def call() -> None:
        async with HttpCaller() as caller:
            for _ in range(2):
                async with caller.call(request_to(server), seconds=30) as answer:
                    await answer.read(1)

    with back_end(answering(raw)) as server:
        asyncio.run(call())

    assert server.requests[0] == server.requests[1]
    assert server.visits == 1, "the connection is used again"


def endless(*, before: bytes = b"", piece: bytes) -> Script:
    def script(visit: Visit, _: bytes) -> object:
        visit.send(before)
        while True:
            visit.send(piece)

    return script


def resetting(*parts: bytes) -> Script:
    """Send these bytes and break the connection off with RST."""

    def script(visit: Visit, _: bytes) -> object:
        visit.send(b"".join(parts))
        time.sleep(0.05)  # RST overtakes what was not read
        linger = struct.pack("ii", 1, 0)
        visit.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return END

    return script


HEAD = b"HTTP/1.1 200 OK\r\n"
# Words of h11 about its own states and buffers.
OF_LIBRARY = re.compile("role=|state=|bytearray|b'|buffer|peer unexp|illegal|regex")
NO_ANSWERS: dict[str, tuple[Script, str]] = {
    "closed": (closing(), "closed the connection"),
    "reset": (resetting(), "connection broke"),
    "half a head": (closing(HEAD, b"Content-"), "closed the connection too early"),
    "interim only": (closing(b"HTTP/1.1 103 E\r\n\r\n"), "closed the connection"),
    "two bytes": (closing(b"ok"), "closed the connection"),
    "html": (answering(b"<html>\r\n\r\n"), "no valid HTTP"),
    "another version": (answering(b"HTTP/2 200\r\n\r\n"), "no valid HTTP"),
    "status of four digits": (answering(b"HTTP/1.1 2000 OK\r\n\r\n"), "no valid HTTP"),
    "no header": (answering(HEAD, b"no header\r\n\r\n"), "no valid HTTP"),
    "blank before colon": (answering(HEAD, b"a : b\r\n\r\n"), "no valid HTTP"),
    "NUL": (answering(HEAD, b"a: \0\r\n\r\n"), "no valid HTTP"),
    "negative length": (
        answering(HEAD, b"Content-Length: -1\r\n\r\n"),
        "no valid HTTP",
    ),
    "two lengths": (answering(HEAD, b"Content-Length: 1, 2\r\n\r\n"), "no valid HTTP"),
    "two length headers": (
        answering(HEAD, b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        "no valid HTTP",
    ),
    "unknown coding": (
        answering(HEAD, b"Transfer-Encoding: gzip\r\n\r\n"),
        "no valid HTTP",
    ),
    "another protocol": (
        answering(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
        "no valid HTTP",
    ),
    "endless headers": (
        endless(before=HEAD, piece=b"a: b\r\n" * 1000),
        "longer than 100000 bytes",
    ),
    "endless header": (
        endless(before=HEAD + b"a: ", piece=b"b" * 10_000),
        "longer than 100000 bytes",
    ),
    "endless status line": (endless(piece=b"x" * 10_000), "no valid HTTP"),
    "endless interim answers": (
        endless(piece=b"HTTP/1.1 103 E\r\n\r\n"),
        "more than 20 interim answers",
    ),
    "too many headers": (
        answering(HEAD, b"a: b\r\n" * 201, b"\r\n"),
        "200 with 201 headers",
    ),
    "too large headers": (
        answering(HEAD, b"a: ", b"b" * 100_000, b"\r\n\r\n"),
        "more than 200 of 100000|longer than 100000 bytes",
    ),
}


def test_a_request_that_is_no_http_is_refused_in_our_own_words() -> None:
    request = EndpointRequest(
        method=b"GE T",
        target=EndpointTarget.parse("http://a.example"),
        path=b"/",
        headers=[],
    )

    with pytest.raises(Invalid, match="no valid HTTP: look at its method") as error:
        request.head()

    assert not OF_LIBRARY.search(str(error.value))


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_leaves_the_outcome_unknown(name: str) -> None:
    script, reason = NO_ANSWERS[name]
    with (
        back_end(script) as server,
        pytest.raises(OutcomeUnknown, match=reason) as error,
    ):
        asyncio.run(body_of(server))

    assert len(server.requests) == 1, "one try"
    assert "\n" not in str(error.value)
    assert not OF_LIBRARY.search(str(error.value))


NINE = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
BROKEN_BODIES: dict[str, tuple[Script, str]] = {
    "too short": (closing(NINE, b"short"), "too early"),
    "reset": (resetting(NINE, b"short"), "broke"),
    "reset without a length": (resetting(b"HTTP/1.0 200 OK\r\n\r\nshort"), "broke"),
    "no last chunk": (closing(CHUNKED, b"5\r\nshort\r\n"), "too early"),
    "short chunk": (closing(CHUNKED, b"9\r\nshort"), "too early"),
    "no trailers": (closing(CHUNKED, b"5\r\nshort\r\n0\r\n"), "too early"),
    "no chunk size": (answering(CHUNKED, b"x\r\nshort\r\n"), "no valid HTTP"),
    "long chunk": (answering(CHUNKED, b"5\r\nshortlonger\r\n"), "no valid HTTP"),
    "chunk of 10**36": (answering(CHUNKED, b"f" * 30, b"\r\n"), "no valid HTTP"),
    "endless size": (endless(before=CHUNKED, piece=b"0" * 10_000), "no valid HTTP"),
    "endless extension": (
        endless(before=CHUNKED + b"1;", piece=b"e" * 10_000),
        "no valid HTTP",
    ),
    "endless trailers": (
        endless(before=CHUNKED + b"0\r\n", piece=b"a: b\r\n"),
        "no valid HTTP",
    ),
}


@pytest.mark.parametrize("name", BROKEN_BODIES)
def test_an_answer_that_breaks_off_leaves_the_outcome_unknown(name: str) -> None:
    script, reason = BROKEN_BODIES[name]

    async def call() -> None:
        async with calling(server) as answer:
            assert answer.status == 200
            with pytest.raises(OutcomeUnknown, match=reason) as error:
                await answer.read(MIB)
            assert not OF_LIBRARY.search(str(error.value))
            with pytest.raises(OutcomeUnknown):
                await answer.read(MIB)
            assert not answer.is_complete

    with back_end(script) as server:
        asyncio.run(call())

    assert len(server.requests) == 1


def dripping(before: bytes, piece: bytes = b"a") -> Script:
    """Send a byte now and then, for a minute."""

    def script(visit: Visit, _: bytes) -> object:
        visit.send(before)
        for _drop in range(600):
            visit.send(piece)
            time.sleep(0.1)
        return END

    return script


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(dripping(b""), id="status line"),
        pytest.param(dripping(HEAD + b"a: "), id="header"),
        pytest.param(dripping(HEAD + b"Content-Length: 100000\r\n\r\n"), id="body"),
        pytest.param(dripping(CHUNKED, b"1\r\na\r\n"), id="chunks"),
        pytest.param(lambda visit, _: visit.has_hung_up(), id="silence"),
    ],
)
def test_a_slow_answer_ends_with_the_time_limit(script: Script) -> None:
    start = time.monotonic()

    async def call() -> None:
        async with HttpCaller() as caller:
            await connect(caller, server)
            async with caller.call(request_to(server), seconds=0.5) as answer:
                await answer.read(MIB)

    with (
        back_end(script) as server,
        pytest.raises(OutcomeUnknown, match="within the time limit|too slowly"),
    ):
        asyncio.run(call())

    assert time.monotonic() - start < 20


def test_a_slow_stream_ends_with_its_own_time_limit() -> None:
    async def call() -> bytes:
        begin = b""
        async with calling(server) as answer:
            with pytest.raises(OutcomeUnknown, match="too slowly"):
                async for piece in answer.chunks(seconds=0.5):
                    begin += piece
        return begin

    with back_end(dripping(CHUNKED + b"1\r\na\r\n", b"1\r\na\r\n")) as server:
        begin = asyncio.run(call())

    assert set(begin) == {ord("a")}


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
    ],
)
def test_of_a_huge_answer_no_more_than_the_limit_is_in_memory(head: bytes) -> None:
    bytes_written = 0
    is_refused = threading.Event()

    def script(visit: Visit, _: bytes) -> object:
        nonlocal bytes_written
        visit.send(head)
        try:
            while bytes_written < 2**30:
                visit.send(bytes(MIB))
                bytes_written += MIB
        except OSError:
            is_refused.set()
        return END

    async def call() -> int:
        async with HttpCaller() as caller:
            tracemalloc.start()
            async with caller.call(request_to(server), seconds=30) as answer:
                assert len(await answer.read(2 * MIB)) == 2 * MIB
                assert not answer.is_complete
                transport = answer._connection._transport
                assert transport is not None
                # What is not read waits at the back end.
                async with asyncio.timeout(30):
                    while transport.is_reading():
                        await asyncio.sleep(0)
                peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # The connection is closed before the caller is.
            await asyncio.to_thread(is_refused.wait, 30)
        return peak

    with back_end(script) as server:
        peak = asyncio.run(call())

    assert is_refused.is_set()
    assert bytes_written < 64 * MIB
    assert peak < 10 * MIB  # with the script's own MIB, and copies


def test_a_long_answer_is_read_in_part_and_then_streamed() -> None:
    whole = bytes(range(256)) * 16 * 1024
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole)

    async def call() -> tuple[bytes, list[bytes]]:
        async with calling(server) as answer:
            begin = await answer.read(MIB)
            was_complete = answer.is_complete
            pieces = [piece async for piece in answer.chunks(seconds=30)]
            assert (was_complete, answer.is_complete) == (False, True)
            assert await answer.read(1) == b""
        return begin, pieces

    with back_end(answering(head, whole)) as server:
        begin, pieces = asyncio.run(call())

    assert len(begin) == MIB
    assert begin + b"".join(pieces) == whole
    assert len(pieces) > 2
    assert max(map(len, pieces)) < MIB


def test_an_answer_that_comes_before_the_body_is_read_counts() -> None:
    is_over = threading.Event()

    def refuse(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
            is_over.wait(30)

    async def call(url: str) -> int:
        large = request_to(url, body=bytes(64 * MIB))
        async with HttpCaller() as caller, caller.call(large, seconds=30) as answer:
            return answer.status

    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        try:
            url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            assert asyncio.run(call(url)) == 413
        finally:
            is_over.set()
            thread.join()


# Connections that are used again.


SURPLUS = b"HTTP/1.1 299 Forged\r\nContent-Length: 6\r\n\r\nforged"


@pytest.mark.parametrize(
    "first",
    [
        OK + SURPLUS,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokay",
        b"HTTP/1.1 204 No\r\n\r\n" + SURPLUS,
        CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + SURPLUS,
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_surplus_bytes_are_never_the_answer_to_the_next_call(
    first: bytes, is_late: bool
) -> None:
    end = first.index(b"ok") + 2 if b"ok" in first else first.index(b"\r\n\r\n") + 4
    if b"chunked" in first:
        end = first.index(b"0\r\n\r\n") + 5

    is_read, is_sent = threading.Event(), threading.Event()

    def script(visit: Visit, _: bytes) -> None:
        if len(server.requests) > 1:
            visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown")
            return
        visit.send(first[:end] if is_late else first)
        if is_late:
            assert is_read.wait(60)
            visit.send(first[end:])
        is_sent.set()

    async def call() -> tuple[bytes, bytes]:
        async with HttpCaller() as caller:
            bodies = []
            for _ in range(2):
                async with caller.call(request_to(server), seconds=30) as answer:
                    bodies.append(await answer.read(MIB))
                is_read.set()
                assert await asyncio.to_thread(is_sent.wait, 60)
                # What has arrived is read before a timer is looked at.
                await asyncio.sleep(0.05)
        return bodies[0], bodies[1]

    with back_end(script) as server:
        one, two = asyncio.run(call())

    assert one in {b"ok", b""}
    assert two == b"own"
    assert (server.visits, len(server.requests)) == (2, 2)


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"DELETE", b"POST"])
def test_a_request_is_written_once_though_the_kept_connection_closes(
    method: bytes,
) -> None:
    """The back end closes at the moment in which the second request arrives."""

    def script(visit: Visit, _: bytes) -> object:
        if len(server.requests) > 1:
            return END
        visit.send(OK)
        return None

    async def call() -> None:
        async with HttpCaller() as caller:
            async with caller.call(request_to(server, method), seconds=30) as answer:
                await answer.read(MIB)
            with pytest.raises(OutcomeUnknown):
                async with caller.call(
                    request_to(server, method, path=b"/second"), seconds=30
                ):
                    pass

    with back_end(script) as server:
        asyncio.run(call())

    second = [one for one in server.requests if b"/second" in one]
    assert (len(second), len(server.requests), server.visits) == (1, 2, 1)


def test_a_connection_that_was_closed_meanwhile_is_not_used() -> None:
    async def call() -> None:
        async with HttpCaller() as caller:
            for _ in range(3):
                async with caller.call(request_to(server), seconds=30) as answer:
                    await answer.read(MIB)
                await asyncio.to_thread(server.threads[-1].join)  # it has closed
                await asyncio.sleep(0.05)

    with back_end(closing(OK)) as server:
        asyncio.run(call())

    assert (server.visits, len(server.requests)) == (3, 3)


def test_an_idle_connection_is_closed_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_closed = threading.Event()
    monkeypatch.setattr(http_caller, "KEEP_ALIVE_SECONDS", 0.1)

    def script(visit: Visit, _: bytes) -> object:
        visit.send(OK)
        if visit.has_hung_up():
            is_closed.set()
        return END

    async def call() -> bool:
        async with HttpCaller() as caller:
            async with caller.call(request_to(server), seconds=30) as answer:
                await answer.read(MIB)
            return await asyncio.to_thread(is_closed.wait, 30)

    with back_end(script) as server:
        assert asyncio.run(call())


def test_a_connection_is_closed_when_its_answer_is_not_read_or_its_caller_leaves() -> (
    None
):
    closed = threading.Semaphore(0)

    def script(visit: Visit, request: bytes) -> object:
        if b"/silent" not in request:
            visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        if visit.has_hung_up():
            closed.release()
        return END

    async def call() -> None:
        async with HttpCaller() as caller:
            async with caller.call(request_to(server), seconds=30):
                pass
            assert await asyncio.to_thread(closed.acquire, timeout=30)

            async def wait_for_ever() -> None:
                async with caller.call(request_to(server, path=b"/silent"), seconds=60):
                    pass

            task = asyncio.create_task(wait_for_ever())
            await asyncio.to_thread(wait_until, lambda: len(server.requests) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(closed.acquire, timeout=30)

    with back_end(script) as server:
        asyncio.run(call())


# Requests that do not leave.


async def fails_to_send(
    url: str, reason: str, *, seconds: float = 30.0, tries: int = 1
) -> None:
    async with HttpCaller() as caller:
        one = EndpointRequest(
            method=b"POST", target=EndpointTarget.parse(url), path=b"/", headers=[]
        )
        for _ in range(tries):
            with pytest.raises(RequestNotSent, match=reason):
                async with caller.call(one, seconds=seconds):
                    pass


def test_a_refused_connection_is_not_sent() -> None:
    url = f"http://{LOOPBACK}:{free_port()}"  # reserved, and none listens

    asyncio.run(fails_to_send(url, "No connection to 127.0.0.1"))


def test_a_name_that_does_not_resolve_is_not_sent() -> None:
    asyncio.run(fails_to_send("http://unknown.invalid", "does not resolve"))


def test_a_handshake_that_takes_too_long_is_not_sent() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        url = f"https://{LOOPBACK}:{silent.getsockname()[1]}"
        asyncio.run(fails_to_send(url, "within the time limit|time-out", seconds=0.5))


def test_a_call_that_gets_no_connection_of_its_target_is_not_sent() -> None:
    is_over = threading.Event()

    def script(visit: Visit, request: bytes) -> None:
        if b"/slow" in request:
            is_over.wait(30)
        visit.send(OK)

    async def call() -> None:
        async with HttpCaller(connections_per_target=1) as caller:

            async def slow() -> bytes:
                one = request_to(server, path=b"/slow")
                async with caller.call(one, seconds=60) as answer:
                    return await answer.read(MIB)

            task = asyncio.create_task(slow())
            await asyncio.to_thread(wait_until, lambda: server.requests)
            with pytest.raises(RequestNotSent, match="in use until the time limit"):
                async with caller.call(request_to(server), seconds=0.3):
                    pass
            # Other targets have connections of their own.
            async with caller.call(request_to(other), seconds=30) as answer:
                assert await answer.read(MIB) == b"ok"
            is_over.set()
            assert await task == b"ok"
            async with caller.call(request_to(server), seconds=30) as answer:
                assert await answer.read(MIB) == b"ok"

    with back_end(script) as server, back_end(answering(OK)) as other:
        try:
            asyncio.run(call())
        finally:
            is_over.set()

    assert len(server.requests) == 2


# Late answers.


def answering_late(seconds: float, *parts: bytes) -> Script:
    def script(visit: Visit, _: bytes) -> object:
        time.sleep(seconds)
        visit.send(b"".join(parts))
        return END

    return script


async def late_answer_of(
    server: ScriptedBackEnd, *, late_for: float
) -> LateAnswer | None:
    async with HttpCaller() as caller:
        await connect(caller, server)
        with pytest.raises(OutcomeUnknown) as error:
            async with caller.call(request_to(server), seconds=0.2, late_for=late_for):
                pass
        return await error.value.late_answer()


def test_a_late_answer_is_given_to_who_asked_for_it() -> None:
    raw = b"HTTP/1.1 201 Made\r\nA: b\r\nContent-Length: 4\r\n\r\nlate"

    with back_end(answering_late(0.6, raw)) as server:
        late = asyncio.run(late_answer_of(server, late_for=30))

    assert late == LateAnswer(
        status=201,
        headers=[(b"A", b"b"), (b"Content-Length", b"4")],
        body=b"late",
        is_complete=True,
    )
    assert len(server.requests) == 2, "one to connect, and one try"


def test_a_large_late_answer_is_cut() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000

    with back_end(answering_late(0.6, raw)) as server:
        late = asyncio.run(late_answer_of(server, late_for=30))

    assert late is not None
    assert (len(late.body), late.is_complete) == (64 * 1024, False)


@pytest.mark.parametrize(
    ("script", "late_for"),
    [
        pytest.param(answering_late(0.6, OK), 0.0, id="not wanted"),
        pytest.param(answering_late(0.6), 30.0, id="closed"),
        pytest.param(answering_late(0.6, NINE, b"x"), 30.0, id="too short"),
        pytest.param(answering_late(0.6, b"nonsense\r\n\r\n"), 30.0, id="nonsense"),
        pytest.param(lambda visit, _: visit.has_hung_up(), 0.3, id="silence"),
        pytest.param(dripping(HEAD + b"a: "), 0.3, id="drip"),
    ],
)
def test_without_a_whole_late_answer_there_is_none(
    script: Script, late_for: float
) -> None:
    with back_end(script) as server:
        assert asyncio.run(late_answer_of(server, late_for=late_for)) is None


async def _unanswered_call(
    caller: HttpCaller, server: ScriptedBackEnd
) -> OutcomeUnknown:
    """Call until a request was sent: a busy machine may need longer to connect."""
    while True:
        try:
            async with caller.call(request_to(server), seconds=0.05, late_for=600):
                raise AssertionError("an answer came")
        except OutcomeUnknown as error:
            return error
        except RequestNotSent:
            continue


def test_late_answers_take_no_connection_from_other_calls_and_end_with_the_caller() -> (
    None
):
    hung_up = threading.Semaphore(0)

    def script(visit: Visit, request: bytes) -> object:
        if b"/quick" in request:
            visit.send(OK)
            return None
        if visit.has_hung_up():
            hung_up.release()
        return END

    async def call() -> list[Callable[[], Awaitable[LateAnswer | None]]]:
        async with HttpCaller(connections_per_target=1) as caller:
            errors = [
                await _unanswered_call(caller, server)
                for _ in range(MOST_LATE_ANSWERS + 1)
            ]
            # One more than are awaited: it was closed at once.
            assert await errors[-1].late_answer() is None
            assert await asyncio.to_thread(hung_up.acquire, timeout=30)
            quick = request_to(server, path=b"/quick")
            async with caller.call(quick, seconds=30) as answer:
                assert await answer.read(MIB) == b"ok"
        return [error.late_answer for error in errors]

    with back_end(script) as server:
        asyncio.run(call())
        for _ in range(MOST_LATE_ANSWERS):
            assert hung_up.acquire(timeout=30)


class _ForeignTransport:
    """A transport as uvloop has it: like that of asyncio, but no subclass of it."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def test_a_transport_of_another_event_loop_is_taken() -> None:
    transport = _ForeignTransport()
    connection = BackEndConnection()
    connection.connection_made(cast(asyncio.BaseTransport, transport))

    connection.write(request_to("http://127.0.0.1:9").head(), b"")

    assert transport.written.endswith(b"\r\n\r\n")
