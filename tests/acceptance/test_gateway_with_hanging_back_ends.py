"""The gateway as a process: hanging back ends slow nothing else, and what a kill costs.

A gateway that is killed during a first try keeps nothing: docs/redelivery.md says so.
"""

from __future__ import annotations

import http.client
import signal
import socket
import threading
from contextlib import ExitStack, suppress
from typing import Any
from urllib.request import Request, urlopen

import pytest

from apps.redelivery.models import CallCount, Delivery
from apps.team.rights import Scope
from poisonweb.embedded.free_ports import LOOPBACK, free_port
from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.web_server_process import Web, api_key
from tests.integration.redelivery.gateway.gateway_in_a_thread import endpoint_of, ok
from tests.unit.redelivery.scripted_back_end import END, Visit, answering
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.django_db(transaction=True)]

HANGING, OTHERS = 100, 30
PATIENT: dict[str, Any] = {
    "attempt_timeout": 600,
    "claim_timeout": 900,
    "client_timeout": 900,
}


def call(port: int, path: str, secret: str) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        connection.request(
            "POST", path, body=b"1", headers={"Authorization": f"Bearer {secret}"}
        )
        return connection.getresponse().status
    finally:
        connection.close()


def began_call(port: int, path: str, secret: str) -> socket.socket:
    caller = socket.create_connection((LOOPBACK, port), timeout=60)
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Poisonweb-Key: {secret}\r\n\r\n"
    caller.sendall(head.encode())
    return caller


def test_hanging_back_ends_slow_nothing_else_and_a_kill_keeps_nothing() -> None:
    opened = threading.Event()

    def hang(_: Visit, __: bytes) -> object:
        opened.wait(600)
        return END

    port, web = free_port(), Web()
    secret = api_key(Scope.GATEWAY_CALL, Scope.SKIPS_READ)
    with (
        ExitStack() as stack,
        endpoint_of(hang, concurrency=HANGING, **PATIENT) as (slow, back_end),
        endpoint_of(answering(ok())) as (quick, _),
    ):
        stack.callback(opened.set)
        with gateway_process(port, secret) as process:
            callers = [
                stack.enter_context(began_call(port, f"/gateway/{slow}/", secret))
                for _ in range(HANGING)
            ]
            wait_until(lambda: len(back_end.requests) == HANGING)
            web.start()
            stack.callback(web.stop)
            skips = Request(
                f"{web.url}/api/v1/skips?topic={quick.topic.name}",
                headers={"Authorization": f"Bearer {secret}"},
            )

            for _ in range(OTHERS):
                for target in (skips, f"{web.url}/sign-in"):
                    with urlopen(target, timeout=60) as answer:
                        assert answer.status == 200
                assert call(port, f"/gateway/{quick}/", secret) == 200

            # Not one of the hanging calls ended meanwhile.
            for caller in callers:
                caller.setblocking(False)
                with pytest.raises(BlockingIOError):
                    caller.recv(1)
            wait_until(lambda: CallCount.objects.filter(endpoint=quick).exists())
            process.send_signal(signal.SIGKILL)
            process.wait()

        for caller in callers:
            caller.settimeout(60)
            with suppress(ConnectionResetError):
                assert caller.recv(1) == b""
        with gateway_process(port, secret):
            assert call(port, f"/gateway/{quick}/", secret) == 200
        assert not Delivery.objects.exists()
        opened.set()
