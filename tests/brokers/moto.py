"""moto's SQS on free loopback ports, behind a gate that counts calls and can be shut.

moto keeps everything in memory, so tests freeze it and cut it off but never kill it.
`look` shows a queue's messages without receiving them, which would count.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from poisonweb.embedded.free_ports import free_port
from tests.waiting import await_start

LOOPBACK = "127.0.0.1"
ROOT = Path(__file__).parents[2]
REGION = "eu-central-1"
LOOK = "/look"
PROGRAM = "tests.brokers.moto_server"
TARGET = re.compile(rb"x-amz-target: *AmazonSQS\.(\w+)", re.IGNORECASE)
CHUNK = 65_536


def missing() -> str:
    """Return what to install for moto; "" if nothing."""
    return "" if find_spec("moto") else "pip install -r requirements-dev.txt (moto)"


@dataclass(frozen=True, kw_only=True, slots=True)
class SqsQueueMessage:
    """A message as moto stores it."""

    body: str
    attributes: dict[str, tuple[str, bytes]]
    group: str | None
    dedupe: str | None
    receives: int
    visible_at: float


class MotoServer:
    """A moto of its own; `url` and `endpoint` lead through the gate."""

    url = f"sqs://test:test@{REGION}"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.process = self._spawn()
        self.gate = CountingGate(self.port)

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.gate.port}"

    def start(self) -> None:
        """Open the gate again and resume moto."""
        self.process.send_signal(signal.SIGCONT)
        self.gate.open()

    def kill(self) -> None:
        """Make moto look dead: refuse all calls, but keep its messages."""
        self.gate.shut()

    def freeze(self) -> None:
        """Let moto accept calls and answer none."""
        self.process.send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        self.gate.shut()
        self.process.kill()
        self.process.wait()

    def look(self, queue: str) -> list[SqsQueueMessage]:
        """Return the messages of an SQS queue, hidden or not, oldest first."""
        url = f"http://{LOOPBACK}:{self.port}{LOOK}?queue={quote(queue)}"
        with urlopen(url, timeout=60) as reply:
            return [_message_of(fields) for fields in json.load(reply)]

    def _spawn(self) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--"),
                    *(sys.executable, "-m", PROGRAM, str(self.port)),
                ],
                cwd=ROOT,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT}/sdk"},
                stdout=log,
                stderr=log,
            )
        await_start(
            process,
            lambda: _answers(self.port),
            describe=(self._folder / "log").read_text,
        )
        return process


class CountingGate:
    """A loopback port in front of another one; `calls` counts SQS' actions by name."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._lock = Lock()
        self._links: set[socket.socket] = set()
        self.port = free_port()
        self.calls: Counter[str] = Counter()
        self.open()

    def open(self) -> None:
        if getattr(self, "_listener", None) is None:
            self._listener: socket.socket | None = socket.create_server(
                (LOOPBACK, self.port), backlog=64
            )
            Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        """Refuse new connections to moto, and cut the open ones."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            # Only this wakes a thread that waits in accept().
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for link in self._links:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            work = Thread(target=self._serve, args=(client, listener), daemon=True)
            work.start()

    def _serve(self, client: socket.socket, listener: socket.socket) -> None:
        with client, socket.create_connection((LOOPBACK, self._behind)) as server:
            with self._lock:
                # It may have been shut since this one came.
                if self._listener is not listener:
                    return
                self._links |= {client, server}
            there = Thread(target=self._pump, args=(client, server), daemon=True)
            there.start()
            self._pump(server, client)
            there.join()
            with self._lock:
                self._links -= {client, server}

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                with self._lock:
                    self.calls.update(n.decode() for n in TARGET.findall(data))
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://{LOOPBACK}:{port}{LOOK}?queue=", timeout=5):
            return True
    except (URLError, OSError):
        return False


def _message_of(fields: dict[str, Any]) -> SqsQueueMessage:
    attributes = {
        name: (kind, base64.b64decode(value))
        for name, (kind, value) in fields.pop("attributes").items()
    }
    return SqsQueueMessage(attributes=attributes, **fields)
