"""Connections that one process hands to another, with what was read of them so far.

A connection goes as it is (`SCM_RIGHTS`, unix(7)): from then on its client talks to the
other process, and this one has nothing more to do with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

_SECONDS = struct.Struct("<d")
_FILES = 2
_NEXT = b"."
# Where the other process is busy, or is being started again.
_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A connection whose request has begun, and the bytes of it that were read.

    The rest of the request may take `seconds_left`.
    """

    connection: socket.socket
    received: bytes
    seconds_left: float


def line() -> tuple[socket.socket, socket.socket]:
    """Make both ends of what connections are handed over by."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)  # noqa: FBT003 - it has no name
    return ours, theirs


class Sender:
    """Hands connections on in their order, as fast as the other process takes them."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._waiting: deque[_Parcel] = deque()
        self._later: asyncio.TimerHandle | None = None

    def hand_on(self, begun: Begun) -> None:
        """Take over `begun.connection`; it is closed here once it is handed on."""
        self._waiting.append(_Parcel.of(begun))
        if self._later is None:
            self._send()

    def go_on_by(self, end: socket.socket) -> None:
        """Hand what waits, and what comes, to another process."""
        self._end.close()
        self._end = end

    def close(self) -> None:
        self._end.close()
        if self._later is not None:
            self._later.cancel()
        while self._waiting:
            self._waiting.popleft().close()

    def _send(self) -> None:
        self._later = None
        try:
            while self._waiting:
                self._waiting[0].send_by(self._end)
                self._waiting.popleft().close()
        except OSError:
            again = asyncio.get_running_loop().call_later
            self._later = again(_PAUSE_SECONDS, self._send)


@dataclass(frozen=True, kw_only=True)
class _Parcel:
    """A connection, and a file in memory with the rest, which may be large."""

    connection: socket.socket
    memory: int

    @classmethod
    def of(cls, begun: Begun) -> Self:
        memory = os.memfd_create("begun")
        with open(memory, "wb", closefd=False) as file:
            file.write(_SECONDS.pack(begun.seconds_left) + begun.received)
        return cls(connection=begun.connection, memory=memory)

    def send_by(self, end: socket.socket) -> None:
        socket.send_fds(end, [_NEXT], [self.connection.fileno(), self.memory])

    def close(self) -> None:
        self.connection.close()
        os.close(self.memory)


def received(end: socket.socket) -> Iterator[Begun]:
    """Give the connections that have come; raises EOFError where no more can come."""
    while True:
        try:
            message, files, _, _ = socket.recv_fds(end, len(_NEXT), _FILES)
        except BlockingIOError:
            return
        if not message:
            raise EOFError
        yield _begun(*files)


def _begun(connection: int, memory: int) -> Begun:
    with open(memory, "rb") as file:
        file.seek(0)
        (seconds_left,) = _SECONDS.unpack(file.read(_SECONDS.size))
        rest = file.read()
    return Begun(
        connection=socket.socket(fileno=connection),
        received=rest,
        seconds_left=seconds_left,
    )
