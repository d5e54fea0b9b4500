"""A back end that answers as a test says, byte by byte, in threads of its own."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LOOPBACK = "127.0.0.1"


class Visit:
    """One connection to a `ScriptedBackEnd`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = b""

    def read_request(self) -> bytes:
        """Return head and body of the next request; b"" where the caller hung up."""
        while b"\r\n\r\n" not in self._buffer:
            if not (data := self._receive()):
                return b""
            self._buffer += data
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = next(
            (
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ),
            0,
        )
        while len(rest) < length:
            if not (data := self._receive()):
                return b""
            rest += data
        self._buffer = rest[length:]
        return head + b"\r\n\r\n" + rest[:length]

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def has_hung_up(self) -> bool:
        """Wait for the caller to close its connection to the back end."""
        self.connection.settimeout(30)
        while data := self._receive():
            self._buffer += data
        return True

    def _receive(self) -> bytes:
        try:
            return self.connection.recv(65536)
        except (ConnectionError, ssl.SSLError):
            return b""


Script = Callable[[Visit, bytes], object]


class ScriptedBackEnd:
    """Reads requests and lets its script answer; counts visits and requests."""

    def __init__(
        self, script: Script, *, host: str = LOOPBACK, tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = script
        self.visits = 0
        self.requests: list[bytes] = []
        self.errors: list[Exception] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._tls = tls
        self.threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def close(self) -> None:
        # A thread that waits in accept() wakes up.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        assert self.errors == []

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.visits += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            visit = Visit(connection)
            while request := visit.read_request():
                self.requests.append(request)
                if self.script(visit, request) is END:
                    return
        except OSError:
            return  # the caller hung up, or refused the certificate
        except Exception as error:  # noqa: BLE001 - close() reports it
            self.errors.append(error)
        finally:
            connection.close()


# What a script returns to close the connection.
END = object()


@contextmanager
def back_end(
    script: Script, *, host: str = LOOPBACK, tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedBackEnd]:
    server = ScriptedBackEnd(script, host=host, tls=tls)
    try:
        yield server
    finally:
        server.close()


def answering(*parts: bytes) -> Script:
    """Have the back end send these bytes and wait for the next request."""

    def script(visit: Visit, _: bytes) -> None:
        visit.send(b"".join(parts))

    return script


def closing(*parts: bytes) -> Script:
    """Have the back end send these bytes and close the connection."""

    def script(visit: Visit, _: bytes) -> object:
        visit.send(b"".join(parts))
        return END

    return script
