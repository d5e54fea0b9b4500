"""A socket to a RabbitMQ, over TCP or TLS, that reads and writes at the same time.

It always does both: a broker that waits for us to read its confirmations, while we wait
for it to read our messages, would wait for ever.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
import weakref
from collections import deque
from contextlib import suppress

from apps.brokers.adapters.rabbitmq.address_and_queues import RabbitAddress
from apps.brokers.errors import MaybeSent, NotSent
from apps.core.text_cleaning import one_line

CONNECT_SECONDS = 5.0
CHUNK = 2**18

_NOT_NOW = (
    BlockingIOError,
    InterruptedError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


class RabbitLink:
    """One connection; it is not thread-safe."""

    def __init__(self, address: RabbitAddress) -> None:
        self.server = address.server
        self._socket = _connect(address)
        # Closes the socket when the link is garbage-collected.
        self._close = weakref.finalize(self, _close, self._socket)
        self._poll = select.poll()
        self._out: deque[memoryview] = deque()
        self._unwritten = 0
        self._refusal: OSError | None = None

    @property
    def tls(self) -> str:
        """Return the TLS version of the connection to RabbitMQ, "" without it."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return ""
        return self._socket.version() or "TLS"

    @property
    def unwritten(self) -> int:
        """Count the bytes that are queued to RabbitMQ and not sent yet."""
        return self._unwritten

    def write(self, data: bytes) -> None:
        """Queue bytes to the broker; the next calls of `turn` send them."""
        self._out.append(memoryview(data))
        self._unwritten += len(data)

    def turn(self, *, wait: float) -> bytes:
        """Exchange bytes with the broker; wait until the socket can do either.

        Raises `MaybeSent` when the broker has closed and all its data was returned.
        """
        until = time.monotonic() + wait
        while True:
            wrote, data = self._send(), self._receive()
            remaining = until - time.monotonic()
            if wrote or data or remaining <= 0:
                return data
            self._wait(remaining)

    def close(self) -> None:
        """Close the socket to the broker; bytes not sent yet are lost."""
        self._close()

    def _send(self) -> bool:
        """Send the queued bytes that the socket takes now; tell whether it took any."""
        before = self._unwritten
        try:
            while self._out:
                sent_count = self._socket.send(self._out[0])
                self._unwritten -= sent_count
                rest = self._out[0][sent_count:]
                self._out.popleft()
                if rest:
                    self._out.appendleft(rest)
        except _NOT_NOW:
            # The kernel's buffer is full: send the rest later.
            return self._unwritten != before
        except OSError as refusal:
            # The broker may have sent a reason before it closed: read that first.
            self._refusal = refusal
            self._out.clear()
            self._unwritten = before = 0
        return self._unwritten != before

    def _receive(self) -> bytes:
        """Receive what RabbitMQ sent by now, b"" for none; raise MaybeSent at end."""
        try:
            data = self._socket.recv(CHUNK)
        except _NOT_NOW:
            if self._refusal is not None:
                raise self._lost_error(self._refusal) from self._refusal
            return b""
        except OSError as error:
            raise self._lost_error(error) from error
        if not data:
            raise self._lost_error(self._refusal)
        return data

    def _wait(self, seconds: float) -> None:
        """Block until RabbitMQ's socket can send or receive, or for so many seconds."""
        events = select.POLLIN | (select.POLLOUT if self._out else 0)
        self._poll.register(self._socket, events)
        self._poll.poll(seconds * 1000)

    def _lost_error(self, error: OSError | None) -> MaybeSent:
        """Build the error of a lost connection to RabbitMQ."""
        why = reason_of(error) if error else "it closed the connection."
        return MaybeSent(f"{self.server} is away: {why}")


def reason_of(error: Exception) -> str:
    """Return the system's error as one short line."""
    words = (isinstance(error, OSError) and error.strerror) or str(error)
    return one_line(words) or type(error).__name__


def _connect(address: RabbitAddress) -> socket.socket:
    """Open a socket to RabbitMQ, with TLS if the address says so; raise NotSent."""
    try:
        connection = address.dial(address.host, address.port, seconds=CONNECT_SECONDS)
        try:
            connection = _start_tls(connection, address)
            connection.settimeout(0)
        except BaseException:
            connection.close()
            raise
    # The resolver raises ValueError for an impossible host name.
    except (OSError, ValueError) as error:
        reason = f"{address.server} is away: {reason_of(error)}"
        raise NotSent(reason) from error
    return connection


def _start_tls(plain: socket.socket, address: RabbitAddress) -> socket.socket:
    """Start TLS on a socket if the address says so; return the socket to use."""
    if not address.tls:
        return plain
    context = ssl.create_default_context()
    return context.wrap_socket(plain, server_hostname=address.host)


def _close(opened: socket.socket) -> None:
    """Close a socket to RabbitMQ and ignore errors."""
    with suppress(OSError):
        opened.close()
