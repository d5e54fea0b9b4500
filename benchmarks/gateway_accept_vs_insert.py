"""Accepted requests a second of an `async` endpoint, against a view with one INSERT.

The baseline is a bare view of Django that inserts one row and commits, almost without
middleware, in a web process with threads and a pool of sessions. One client calls both
in turn, by as many connections, on a durable Postgres as `make run` has it. Target: at
least 0.7 of the view.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks._benchmark_harness import ROUNDS, api_key, product, web
from poisonweb import env
from poisonweb.embedded import process_control, process_plan
from poisonweb.embedded.free_ports import LOOPBACK, free_port

NUMBER = int(os.environ.get("NUMBER", "2000"))
CONNECTIONS = int(os.environ.get("CONNECTIONS", "32"))
BODY = b"<quote symbol='IBM'/>" * 20


@contextmanager
def gateway() -> Iterator[int]:
    """Run the redelivery gateway of an installation; yield its port."""
    port = free_port()
    programs = process_plan.make(
        env.load(os.environ), port=port, gateway_port=port, environ=os.environ
    ).processes
    program = next(program for program in programs if program.name == "gateway")
    environment = {**program.environment, "PYTHONPATH": str(env.ROOT)}
    ready = process_control.Program(
        name="gateway",
        command=(
            program.command[0],
            str(env.ROOT / program.command[1]),
            *program.command[2:],
        ),
        environment=environment,
        ready=lambda _: _listens(port),
    )
    with process_control.running(ready, folder=Path(os.environ["POISONWEB_VAR"])):
        yield port


def _listens(port: int) -> bool:
    async def connect() -> bool:
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:
            return False
        writer.close()
        return True

    return asyncio.run(connect())


def request(path: str, key: str) -> bytes:
    """Return the bytes of an HTTP request to the gateway, which the client repeats."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"X-Poisonweb-Key: {key}",
        "Content-Type: text/xml; charset=utf-8",
        f"Content-Length: {len(BODY)}",
        "",
        "",
    ]
    return "\r\n".join(head).encode() + BODY


async def post(port: int, data: bytes, expected: bytes) -> float:
    """Send NUMBER HTTP requests over all connections; return the seconds taken.

    Raises AssertionError at an answer that does not begin with `expected`.
    """
    turns = iter(range(NUMBER))

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        for _ in turns:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(expected):
                raise AssertionError(head)
            _, has_length, rest = head.lower().partition(b"content-length: ")
            if has_length:
                await reader.readexactly(int(rest.split(b"\r\n")[0]))
            else:
                await reader.readuntil(b"0\r\n\r\n")  # the last chunk
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    return time.perf_counter() - began


def main(view_port: int, gateway_port: int, key: str, endpoint: str) -> None:
    """Time calls of the gateway and of a bare view in turn; print their ratio."""
    from benchmarks._bare_insert_view_urls import LEAST

    view = request(f"/{LEAST}", key)
    accept = request(f"/gateway/{endpoint}/quotes", key)
    views, accepts = list[float](), list[float]()
    for turn in range(ROUNDS + 1):
        seconds = asyncio.run(post(view_port, view, b"HTTP/1.1 200"))
        others = asyncio.run(post(gateway_port, accept, b"HTTP/1.1 202"))
        if turn:  # the first is to warm up
            views.append(NUMBER / seconds)
            accepts.append(NUMBER / others)
    ours, theirs = statistics.median(accepts), statistics.median(views)
    print(f"accepted: {ours:,.0f}/s, the view: {theirs:,.0f}/s", end=", ")
    print(f"ratio {ours / theirs:.2f}")


def make_endpoint() -> str:
    """Create a benchmark's endpoint at an address without a server.

    No delivery is sent.
    """
    from apps.core import clock
    from apps.core.actor import Actor
    from apps.redelivery.endpoint_settings_dataclass import PRESETS, EndpointSettings
    from apps.redelivery.services.endpoints import create_endpoint
    from apps.team.rights import Principal, Scope

    name = "stock-quote"
    create_endpoint(
        name=name,
        settings=EndpointSettings(
            target="http://192.0.2.1:9000", **PRESETS["async-caller"]
        ),
        principal=Principal(actor=Actor.system("bench"), scopes=frozenset(Scope)),
        now=clock.now(),
    )
    return name


if __name__ == "__main__":
    with product(durable=True):
        from django.db import connection

        from benchmarks._bare_insert_view_urls import TABLE

        with connection.cursor() as cursor:
            cursor.execute(TABLE)
        endpoint_name, secret = make_endpoint(), api_key()
        with (
            web("benchmarks._product_settings_with_bare_view") as url,
            gateway() as own_port,
        ):
            main(urlsplit(url).port or 0, own_port, secret, endpoint_name)
