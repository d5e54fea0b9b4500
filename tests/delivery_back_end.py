"""A back end in a process of its own, with a ledger of what it received.

An effect happens once for each Idempotency-Key. Both are files, so they outlive a kill:
each line is written by one call, whole or not at all. The path says what it answers:

    /ok                  200
    /status/503          that status
    /down-for/3          503 to the first three requests of a key, then 200
    /slow/1.5            200 after so many seconds

A `hold` file beside the ledger delays all answers until it is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.test import override_settings

from poisonweb.embedded.free_ports import free_port

ROOT = Path(__file__).resolve().parents[1]


@dataclass(kw_only=True)
class BackEnd:
    """A server at one address that can be killed and started again."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            (sys.executable, "-m", __name__, str(self.port), str(self.folder)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def hold(self) -> None:
        """Let the back end answer nothing, until `let_go`."""
        (self.folder / "hold").touch()

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def size(self) -> int:
        """Return the bytes of the back end's ledger, which grows with each request."""
        path = self.folder / "requests"
        return path.stat().st_size if path.exists() else 0

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that reached the back end, in their order."""
        return _lines(self.folder / "requests")

    def requests_by_delivery(self) -> Counter[str]:
        return Counter(each["delivery"] for each in self.requests())

    def effects(self) -> list[str]:
        """Return the Idempotency-Keys of the effects."""
        return [each["key"] for each in _lines(self.folder / "effects")]


@contextmanager
def back_end_in(folder: Path) -> Iterator[BackEnd]:
    """Run a back end that endpoints may lead to."""
    back_end = BackEnd(folder=folder)
    with override_settings(POISONWEB_ENDPOINT_HOSTS=("127.0.0.1",)):
        back_end.start()
        try:
            yield back_end
        finally:
            back_end.kill()


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines()]


class RequestLedger:
    def __init__(self, folder: Path) -> None:
        self._files = {
            name: os.open(folder / name, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            for name in ("requests", "effects")
        }
        self.hold = folder / "hold"
        self._effects = {each["key"] for each in _lines(folder / "effects")}
        self.requests = Counter(each["key"] for each in _lines(folder / "requests"))

    def note_request(self, **request: Any) -> None:
        self._write("requests", request)
        self.requests[request["key"]] += 1

    def have_effect(self, key: str) -> None:
        if key not in self._effects:
            self._effects.add(key)
            self._write("effects", {"key": key})

    def _write(self, name: str, entry: dict[str, Any]) -> None:
        os.write(self._files[name], json.dumps(entry).encode() + b"\n")


class BackEndConnection(asyncio.Protocol):
    """Reads requests with a Content-Length, one after the other, and answers them."""

    def __init__(self, ledger: RequestLedger | None) -> None:
        self._ledger = ledger
        self._received = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._received[:end].split(b"\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(b":") for line in lines)
            }
            length = int(headers.get(b"content-length", 0))
            body = self._received[end + 4 : end + 4 + length]
            if len(body) < length:
                return
            self._received = self._received[end + 4 + length :]
            if self._ledger is None:
                self._answer(200)
            else:
                task = asyncio.create_task(
                    self._handle(self._ledger, first, headers, body)
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _handle(
        self,
        ledger: RequestLedger,
        first: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
    ) -> None:
        method, target, _ = first.decode().split(" ")
        key = headers.get(b"idempotency-key", b"").decode()
        ledger.note_request(
            key=key,
            delivery=headers.get(b"x-poisonweb-delivery", b"").decode(),
            method=method,
            target=target,
            body=body.decode("latin-1"),
        )
        while ledger.hold.exists():
            await asyncio.sleep(0.01)
        _, kind, *values = target.partition("?")[0].split("/")
        status = 200
        if kind == "status":
            status = int(values[0])
        elif kind == "slow":
            await asyncio.sleep(float(values[0]))
        elif kind == "down-for" and ledger.requests[key] <= int(values[0]):
            status = 503
        if status == 200:
            ledger.have_effect(key)
        self._answer(status)

    def _answer(self, status: int) -> None:
        body = b"answer %d" % status
        head = b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(port: int, ledger: RequestLedger | None) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: BackEndConnection(ledger), "127.0.0.1", port, backlog=1_000
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number, *folders = sys.argv[1:]
    asyncio.run(
        serve(int(number), RequestLedger(Path(folders[0])) if folders else None),
    )
