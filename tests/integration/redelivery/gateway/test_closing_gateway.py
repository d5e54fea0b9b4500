"""A gateway that closes while a caller does not take its answer."""

from __future__ import annotations

import asyncio

import pytest

from apps.redelivery.gateway import application
from apps.redelivery.gateway.application import GatewayApplication
from apps.redelivery.gateway.caller_connections import AsgiMessage

SCOPE = {
    "type": "http",
    "method": "GET",
    "raw_path": b"/healthz",
    "query_string": b"",
    "headers": [],
}


async def hang(_: AsgiMessage | None = None) -> AsgiMessage:
    await asyncio.Event().wait()
    return {}


async def send(message: AsgiMessage) -> None:
    await hang(message)


@pytest.mark.django_db(transaction=True)
def test_a_caller_that_takes_nothing_does_not_keep_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(application, "CLOSE_SECONDS", 0.1)

    async def serve() -> None:
        gateway = await GatewayApplication.start()
        call = asyncio.create_task(gateway(SCOPE, hang, send))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await gateway.aclose()
        assert not call.done()

    asyncio.run(serve())
