"""A loopback TCP proxy that cuts the link after so many bytes in one direction."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

LOOPBACK = "127.0.0.1"
CHUNK = 65_536


@contextmanager
def cutting(
    port: int, *, after_replies: int | None = None, after_requests: int | None = None
) -> Iterator[int]:
    """Pass one connection on to `port` until it is cut; yield the port to call.

    At the end it is cut anyway, whoever still holds it.
    """
    links: list[socket.socket] = []
    with socket.create_server((LOOPBACK, 0)) as listener:
        relay = Thread(
            target=_serve, args=(listener, port, after_requests, after_replies, links)
        )
        relay.start()
        yield listener.getsockname()[1]
        # Whoever never called lets the relay go.
        with suppress(OSError), socket.create_connection(listener.getsockname()):
            pass
        for link in links:
            _shut(link)
        relay.join()


def _serve(
    listener: socket.socket,
    port: int,
    requests: int | None,
    replies: int | None,
    links: list[socket.socket],
) -> None:
    client, _ = listener.accept()
    listener.close()
    with client, socket.create_connection((LOOPBACK, port)) as server:
        links += [client, server]
        there = Thread(target=_pump, args=(client, server, requests))
        there.start()
        _pump(server, client, replies)
        there.join()


def _pump(source: socket.socket, target: socket.socket, left: int | None) -> None:
    with suppress(OSError):
        while left != 0 and (data := source.recv(CHUNK if left is None else left)):
            target.sendall(data)
            left = None if left is None else left - len(data)
    for end in (source, target):
        _shut(end)


def _shut(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
