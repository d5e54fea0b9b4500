"""Hand connections to another process, with the bytes that were read from them.

The other process receives the connection itself (`SCM_RIGHTS`, unix(7)): from then on
it talks to the client, and this process does not.
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
# While the other process is busy, or is being restarted.
_PAUSE_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class PartialRequest:
    """A connection, and the bytes of its request that were read so far.

    The rest of the request may take `seconds_left`.
    """

    connection: socket.socket
    data: bytes
    seconds_left: float


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Create two sockets by which the web hands connections to its second process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)  # noqa: FBT003 - it has no name
    return ours, theirs


class ConnectionSender:
    """Hand connections over in order, as fast as the other process receives them."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._waiting: deque[_Item] = deque()
        self._later: asyncio.TimerHandle | None = None

    def hand_on(self, request: PartialRequest) -> None:
        """Queue a request to the web for the other process; send it if possible.

        Close its connection here once it is handed on.
        """
        self._waiting.append(_Item.of(request))
        if self._later is None:
            self._send()

    def replace_socket(self, end: socket.socket) -> None:
        """Send the web's waiting and later clients by this handover socket.

        Close the one before.
        """
        self._end.close()
        self._end = end

    def close(self) -> None:
        """Close the web's handover socket and all clients that still wait."""
        self._end.close()
        if self._later is not None:
            self._later.cancel()
        while self._waiting:
            self._waiting.popleft().close()

    def _send(self) -> None:
        """Send waiting client connections to the other process.

        Retry later where its socket is full, or the process away.
        """
        self._later = None
        try:
            while self._waiting:
                self._waiting[0].send_by(self._end)
                self._waiting.popleft().close()
        except OSError:
            call_later = asyncio.get_running_loop().call_later
            self._later = call_later(_PAUSE_SECONDS, self._send)


@dataclass(frozen=True, kw_only=True)
class _Item:
    """A connection, and a file in memory with the data, which may be large."""

    connection: socket.socket
    memory: int

    @classmethod
    def of(cls, request: PartialRequest) -> Self:
        """Write a request to the web to memory, to hand it on with its connection."""
        memory = os.memfd_create("request")
        with open(memory, "wb", closefd=False) as file:
            file.write(_SECONDS.pack(request.seconds_left) + request.data)
        return cls(connection=request.connection, memory=memory)

    def send_by(self, end: socket.socket) -> None:
        """Pass a client connection of the web and its request to another process."""
        socket.send_fds(end, [_NEXT], [self.connection.fileno(), self.memory])

    def close(self) -> None:
        self.connection.close()
        os.close(self.memory)


def receive(end: socket.socket) -> Iterator[PartialRequest]:
    """Yield the client connections that the web has handed over, until none waits.

    Raises EOFError after the last one, once the web has closed its end.
    """
    while True:
        try:
            message, files, _, _ = socket.recv_fds(end, len(_NEXT), _FILES)
        except BlockingIOError:
            return
        if not message:
            raise EOFError
        yield _partial_request(*files)


def _partial_request(connection: int, memory: int) -> PartialRequest:
    """Rebuild a request to the web from the files of its connection and memory."""
    with open(memory, "rb") as file:
        file.seek(0)
        (seconds_left,) = _SECONDS.unpack(file.read(_SECONDS.size))
        data = file.read()
    return PartialRequest(
        connection=socket.socket(fileno=connection),
        data=data,
        seconds_left=seconds_left,
    )
