"""Bounds what a producer's database may answer: in how many seconds, how many bytes.

Limits of its own do not bind a server that is frozen, or that is another program.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

import psycopg

from poisonguard.locks.postgres_connection import cut_connection

# Of rows, notices and all else that comes on one connection.
MOST_BYTES = 32 * 2**20
LOOK_SECONDS = 0.05
# Where struct tcp_info of Linux has `tcpi_bytes_received`; elsewhere it is not counted.
TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
RECEIVED = struct.Struct("=128xQ")


@contextmanager
def limit_answers(
    connection: psycopg.Connection[Any],
    *,
    seconds: float,
    most_bytes: int | None = None,
) -> Iterator[Callable[[], None]]:
    """Limit the seconds and bytes of a producer database's answers within a block.

    Beyond a limit, the connection is cut, and psycopg's OperationalError is raised at
    the end of the block, even if the block caught the error of the cut. The block gets
    a function that raises it: call it before a commit.
    """
    watch = _Watch(
        connection, seconds, MOST_BYTES if most_bytes is None else most_bytes
    )
    try:
        yield watch.require
        watch.look()
    except psycopg.Error as error:
        if watch.reason:
            raise psycopg.OperationalError(watch.reason) from error
        raise
    finally:
        watch.close()
    if watch.reason:
        raise psycopg.OperationalError(watch.reason)


class _Watch:
    """Look at a connection in a thread of its own."""

    def __init__(
        self, connection: psycopg.Connection[Any], seconds: float, most_bytes: int
    ) -> None:
        self.reason = ""
        self._connection = connection
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._until = monotonic() + seconds
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="outbox answer limits", daemon=True
        )
        self._thread.start()

    def look(self) -> None:
        """Cut a producer database's connection where its answers exceed limits.

        These are the limits of time and of bytes.
        """
        if monotonic() > self._until:
            self.reason = f"it took longer than {self._seconds:g} seconds in all"
        elif _received_bytes(self._connection) > self._most_bytes:
            self.reason = f"it answered with more than {self._most_bytes:,} bytes"
        if self.reason:
            cut_connection(self._connection)

    def require(self) -> None:
        """Raise OperationalError where a producer database's answers exceed a limit.

        Its connection is cut then.
        """
        self.look()
        if self.reason:
            raise psycopg.OperationalError(self.reason)

    def close(self) -> None:
        """Stop the thread that watches a producer database's answers.

        It waits for the thread's end.
        """
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.reason and not self._end.wait(LOOK_SECONDS):
            self.look()


def _received_bytes(connection: psycopg.Connection[Any]) -> int:
    """Count the bytes that came from a producer's database on its connection.

    It is 0 where the connection is closed, or such bytes are not counted here.
    """
    if TCP_INFO is None:
        return 0
    with (
        suppress(psycopg.Error, OSError, struct.error),
        socket.socket(fileno=os.dup(connection.fileno())) as link,
    ):
        info = link.getsockopt(socket.IPPROTO_TCP, TCP_INFO, RECEIVED.size)
        received: int = RECEIVED.unpack(info)[0]
        return received
    return 0
