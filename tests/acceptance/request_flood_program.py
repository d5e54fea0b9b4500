"""A flood of one kind of requests, as a program, for so many seconds.

`python -m tests.acceptance.request_flood_program KIND SECONDS`.

Each of its clients asks again as soon as it is answered or refused, until the time is
over. It prints a line when it begins, and in the end how often it got which answer. It
runs at a lower priority than other processes, and ends by itself in any case. What it
needs of the product it reads from FLOOD_PORT, FLOOD_KEY and FLOOD_REDIS.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import uuid
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, count, cycle
from random import Random

import zstandard
from redis import Redis

KIB, MIB = 1024, 1024 * 1024
PIECE = 64 * KIB
NICENESS = 19
# Until a client that hangs, or Redis, is waited for no more. At its priority, the rest
# of its work may take long.
LONGEST_END = 120
ANSWER_SECONDS = 30.0
TOPIC, QUEUE = "floods", "floods-poison"
# A queue that is always full: more would only fill the memory of its broker.
MOST_WAITING = 2_000
COOKIE = "a" * 32


@dataclass(kw_only=True)
class Flood:
    port: int
    key: str
    redis_url: str
    seconds: float
    answers: Counter[str] = field(default_factory=Counter)
    random: Random = field(default_factory=lambda: Random(1))

    async def run(self, kind: str) -> None:
        """Flood the web for so many seconds, and on until something was answered."""
        clients, client = KINDS[kind]
        flood = asyncio.gather(*(self._again(client) for _ in range(clients)))
        await asyncio.wait([flood], timeout=self.seconds)
        while not (self.answers or flood.done()):
            await asyncio.sleep(0.05)
        flood.cancel()
        with suppress(asyncio.CancelledError):
            await flood

    async def _again(self, client: Client) -> None:
        while True:
            try:
                await client(self)
            except (OSError, EOFError, ValueError) as trouble:
                self.answers[type(trouble).__name__] += 1
                # Who is refused a connection would turn without a pause.
                await asyncio.sleep(0.05)

    async def ask(self, head: bytes, body: bytes) -> None:
        """Send a request on its own connection, and count the answer's status."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            # Refused on its first bytes, it is answered before all of it is sent.
            with suppress(ConnectionError):
                writer.write(head)
                for start in range(0, len(body), PIECE):
                    writer.write(body[start : start + PIECE])
                    await writer.drain()
            await self._count(reader)
        finally:
            await closed(writer)

    async def _count(self, reader: StreamReader) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await reader.readline()
            self.answers[line[9:12].decode() or "nothing"] += 1
            while await reader.read(PIECE):
                pass

    def head(
        self, path: str, size: int, kind: str, *, bearer: str = "", encoding: str = ""
    ) -> bytes:
        """Give the head of a POST of so many bytes of this kind."""
        lines = [
            *(f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"),
            *("Connection: close", f"Cookie: pw_csrf={COOKIE}"),
            *(f"Content-Type: {kind}", f"Content-Length: {size}"),
            *([f"Authorization: Bearer {bearer}"] if bearer else []),
            *([f"Content-Encoding: {encoding}"] if encoding else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode()


Client = Callable[[Flood], Awaitable[None]]
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


async def closed(writer: StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _forms() -> Iterator[tuple[str, bytes]]:
    """Yield forms of strangers that are costly to read, up to and beyond limits."""
    parts = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    files = parts.replace(b'"a"', b'"a"; filename="a"')
    token = f"csrfmiddlewaretoken={COOKIE}&a=".encode()
    multipart = "multipart/form-data; boundary=b"
    return cycle(
        [
            (FORM, token + b"%41" * (21 * KIB)),
            (FORM, b"a=1&" * (15 * KIB)),
            (FORM, token + b"%41" * MIB),
            (FORM, token + b"%41" * 10 * MIB),
            (multipart, parts * 1_000 + b"--b--\r\n"),
            (multipart, files * 900 + b"--b--\r\n"),
            (multipart, files * 20_000),
        ]
    )


FORMS = _forms()
PATHS = cycle(("/sign-in", "/preferences", "/problems"))


async def forms(flood: Flood) -> None:
    kind, body = next(FORMS)
    await flood.ask(flood.head(next(PATHS), len(body), kind), body)


async def half_requests(flood: Flood) -> None:
    """Begin a request and keep it: half a head, half a form, or half a report."""
    reader, writer = await asyncio.open_connection("127.0.0.1", flood.port)
    half = flood.random.choice(
        (
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: " + b"a" * KIB,
            flood.head("/sign-in", 60 * KIB, FORM) + b"a" * (59 * KIB),
            flood.head("/api/v1/failures", 60 * KIB, JSON) + b"[" * (59 * KIB),
            flood.head("/sign-in", 900 * KIB, FORM) + b"a" * (800 * KIB),
        )
    )
    try:
        with suppress(ConnectionError):
            writer.write(half)
            await writer.drain()
        flood.answers["begun"] += 1
        line = await reader.readline()
        flood.answers[line[9:12].decode() or "nothing"] += 1
    finally:
        await closed(writer)


NAMES = count()


async def sign_ins(flood: Flood) -> None:
    """Guess passwords, of an account that exists and of many that do not."""
    name = "admin" if flood.random.random() < 0.5 else f"nobody-{next(NAMES)}"
    form = f"csrfmiddlewaretoken={COOKIE}&username={name}&password=wrong".encode()
    await flood.ask(flood.head("/sign-in", len(form), FORM), form)


def _documents() -> Iterator[tuple[bytes, str]]:
    """Yield JSON that is costly to read, up to and beyond what the API takes."""
    lists = b'{"failures":[' + b"[]," * 10 * MIB + b"[]]}"
    bomb = zstandard.ZstdCompressor().compress(lists[: 31 * MIB])
    members = b'{"failures":[' + b"{}," * 900 + b"{}]}"
    return cycle(
        [
            (b'{"failures":[' + b"[]," * 499_000 + b"[]]}", ""),
            (lists[: 8 * MIB], ""),
            (bomb, "zstd"),
            (b'{"failures":["' + b'\\"' * 4 * MIB + b'"]}', ""),
            (b"[" * 100_000, ""),
            (members, ""),
            (b'{"failures":[' + b"1" * MIB + b"]}", ""),
        ]
    )


async def json_documents(flood: Flood) -> None:
    body, encoding = next(DOCUMENTS)
    head = flood.head(
        "/api/v1/failures", len(body), JSON, bearer=flood.key, encoding=encoding
    )
    await flood.ask(head, body)


async def streams(flood: Flood) -> None:
    """Open a skip stream, read its beginning only, and leave it after a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", flood.port)
    topic = f"topic={TOPIC}&topic=orders-{flood.random.randrange(1000)}"
    lines = (
        *(f"GET /api/v1/skips/stream?{topic} HTTP/1.1", "Host: 127.0.0.1"),
        *(f"Authorization: Bearer {flood.key}", "", ""),
    )
    try:
        writer.write("\r\n".join(lines).encode())
        await writer.drain()
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await reader.readline()
        flood.answers[line[9:12].decode() or "nothing"] += 1
        await asyncio.sleep(flood.random.uniform(0.5, 10))
    finally:
        # As one does that is killed: nothing more is read.
        writer.transport.abort()


async def letters(flood: Flood) -> None:
    """Keep a dead-letter queue full of what was written to hurt who reads it."""
    redis = Redis.from_url(flood.redis_url)
    try:
        while True:
            room = MOST_WAITING - await asyncio.to_thread(redis.xlen, QUEUE)
            if room > 0:
                await asyncio.to_thread(_send, flood, redis, min(room, 200))
            else:
                await asyncio.sleep(0.02)
    finally:
        redis.close()


def _send(flood: Flood, redis: Redis, number: int) -> None:
    pipeline = redis.pipeline(transaction=False)
    for _ in range(number):
        fields = chain.from_iterable(_hostile(flood.random).items())
        pipeline.execute_command("XADD", QUEUE, "*", *fields)
    pipeline.execute()
    flood.answers["sent"] += number


def _hostile(random: Random) -> dict[bytes, bytes]:
    letters = base64.b64encode(random.randbytes(3 * KIB))
    usual: dict[bytes, bytes] = {
        b"body": b"{}",
        b"x-consumer-group": b"billing",
    }
    return random.choice(
        (
            {**usual, b"x-consumer-group": letters},
            {**usual, b"x-exception-type": letters, b"x-exception-message": letters},
            {**usual, b"body": b'"' + b'\\"' * (32 * KIB - 1)},
            {**usual, b"x-exception-traceback": b'File "a.py", line ' + b"9" * 5_000},
            {**usual, b"body": random.randbytes(KIB), b"x-id": uuid.uuid4().bytes},
            {**usual, **{b"x-%d" % n: b"\0\xff" for n in range(500)}},
            {b"body": b"{}", b"x-failures": b"9" * 400, b"x-error": b"\xff" * KIB},
            {b"x-consumer-group": b""},
            {**usual, b"body": b"[" * 100_000},
            {**usual, b"x-failed-at": str(datetime.max.replace(tzinfo=UTC)).encode()},
        )
    )


# How many clients a process has, and what each does again and again.
KINDS: dict[str, tuple[int, Client]] = {
    "forms": (16, forms),
    "half requests": (300, half_requests),
    "sign-ins": (24, sign_ins),
    "json": (4, json_documents),
    "streams": (150, streams),
    "letters": (1, letters),
}

if __name__ == "__main__":
    os.nice(NICENESS - os.nice(0))
    kind, seconds = sys.argv[1], float(sys.argv[2])
    # Made in the time of who floods only.
    DOCUMENTS = _documents() if kind == "json" else iter(())
    signal.alarm(int(seconds) + LONGEST_END)
    flood = Flood(
        port=int(os.environ["FLOOD_PORT"]),
        key=os.environ["FLOOD_KEY"],
        redis_url=os.environ["FLOOD_REDIS"],
        seconds=seconds,
    )
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    asyncio.run(flood.run(kind))
    json.dump(flood.answers, sys.stdout)
