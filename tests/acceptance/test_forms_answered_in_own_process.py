"""Forms and large requests are answered by a process of their own, as by the web."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.poison.models import Body
from apps.team.rights import Role
from apps.team.services import create_user
from tests.acceptance.web_server_process import Web, api_key
from tests.failure_report_builders import failure
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

PASSWORD = "correct horse battery staple"
COOKIE = "a" * 32
BODY = bytes(range(256)) * 1_000
FORM = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Cookie": f"pw_csrf={COOKIE}",
}

Headers = Mapping[str, str]
Encode = Callable[[bytes], bytes]


@pytest.fixture
def connection(web: Web) -> Iterator[http.client.HTTPConnection]:
    line = http.client.HTTPConnection("127.0.0.1", web.port, timeout=60)
    with closing(line):
        yield line


def pid_of(web: Web) -> int:
    assert web.process
    return web.process.pid


def second_process_of(web: Web) -> int:
    pid = pid_of(web)
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def is_alive(pid: int) -> bool:
    """Check whether the process runs; an ended one that is not reaped does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def report(*, body: bytes = b"{}", key: str, **headers: str) -> tuple[bytes, Headers]:
    document = json.dumps({"failures": [failure(clock.now(), body=body)]}).encode()
    usual = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return document, {**usual, **headers}


def sign_in_form() -> bytes:
    form = {"csrfmiddlewaretoken": COOKIE, "username": "anna", "password": PASSWORD}
    return urlencode(form).encode()


def status_of(
    connection: http.client.HTTPConnection, path: str, body: object, headers: Headers
) -> tuple[int, str]:
    """Post it; give the status, and what becomes of the connection."""
    connection.request("POST", path, body, dict(headers))  # type: ignore[arg-type]
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.headers.get("Connection", "")


def test_a_report_is_answered_while_the_process_for_forms_hangs(
    web: Web, connection: http.client.HTTPConnection
) -> None:
    second = second_process_of(web)
    document, headers = report(key=api_key())
    form = sign_in_form()
    head = f"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1:{web.port}\r\n" + "".join(
        f"{name}: {value}\r\n"
        for name, value in {**FORM, "Content-Length": len(form)}.items()
    )

    os.kill(second, signal.SIGSTOP)
    with socket.create_connection(("127.0.0.1", web.port), timeout=60) as line:
        line.sendall(head.encode() + b"\r\n" + form[:10])
        reported = status_of(connection, "/api/v1/failures", document, headers)
        line.sendall(form[10:])
        os.kill(second, signal.SIGCONT)
        answer = line.makefile("rb").read()

    assert reported == (200, "")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize(
    ("encode", "headers"),
    [
        (bytes, {}),
        (gzip.compress, {"Content-Encoding": "gzip"}),
        # An iterator has no length: it goes in chunks.
        (lambda whole: iter([whole[:1_000], whole[1_000:]]), {}),
    ],
    ids=["as it is", "gzip", "chunks"],
)
def test_a_large_report_is_captured_byte_for_byte(
    connection: http.client.HTTPConnection, encode: Encode, headers: dict[str, str]
) -> None:
    document, all_headers = report(body=BODY, key=api_key(), **headers)

    answered = status_of(
        connection, "/api/v1/failures", encode(document), {**all_headers, **headers}
    )

    assert answered == (200, "close")
    [body] = Body.objects.values_list("content", flat=True)
    assert bytes(body) == BODY


def test_a_form_on_a_connection_that_was_used_comes_with_its_address(
    connection: http.client.HTTPConnection,
) -> None:
    create_user(
        username="anna",
        password=PASSWORD,
        role=Role.VIEWER,
        reads_bodies=False,
        actor=Actor.system("test"),
        now=clock.now(),
    )
    connection.request("GET", "/sign-in")
    page = connection.getresponse()
    page.read()

    answered = status_of(connection, "/sign-in", sign_in_form(), FORM)

    entry = Entry.objects.get(action="user.signed_in")
    assert page.status == 200
    assert answered == (302, "close")
    assert entry.detail["address"] == "127.0.0.1"


def test_another_process_begins_where_one_is_killed(
    web: Web, connection: http.client.HTTPConnection
) -> None:
    killed = second_process_of(web)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_alive(killed))

    # It waits for the next one.
    answered = status_of(connection, "/sign-in", sign_in_form(), FORM)

    assert answered == (200, "close")
    assert second_process_of(web) != killed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_process_for_forms_ends_with_the_web(
    web: Web, number: signal.Signals
) -> None:
    second = second_process_of(web)

    web.stop(number)

    wait_until(lambda: not is_alive(second))
    # It waited for the other one, where it could.
    assert number is signal.SIGKILL or not is_alive(second)
