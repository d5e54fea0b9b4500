"""Loopback TCP proxies: one cuts the link after so many bytes, one counts requests."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread

from apps.brokers.adapters.adapter import BrokerSettings

LOOPBACK = "127.0.0.1"
CHUNK = 65_536


@contextmanager
def cutting(
    port: int, *, after_replies: int | None = None, after_requests: int | None = None
) -> Iterator[int]:
    """Forward one connection to `port` until it is cut; yield the port to call.

    The exit cuts it in any case, even while a client holds it.
    """
    links: list[socket.socket] = []
    with socket.create_server((LOOPBACK, 0)) as listener:
        relay = Thread(
            target=_serve, args=(listener, port, after_requests, after_replies, links)
        )
        relay.start()
        yield listener.getsockname()[1]
        # Frees the relay where no client ever connected.
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


class Counter:
    """Proxy that counts the requests of its clients."""

    def __init__(self, port: int) -> None:
        self.requests = 0
        self._behind = port
        self._ends = ExitStack()
        self._threads: list[Thread] = []
        self._listener = self._ends.enter_context(socket.create_server((LOOPBACK, 0)))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        """Refuse new connections to the proxy, and cut the open ones."""
        _shut(self._listener)
        self._ends.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(Thread(target=work))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        server = socket.create_connection((LOOPBACK, self._behind))
        answered = True

        def count_request() -> None:
            nonlocal answered
            # Several pieces are one request until an answer comes.
            self.requests += answered
            answered = False

        def replied() -> None:
            nonlocal answered
            answered = True

        for end in (client, server):
            self._ends.enter_context(end)
            self._ends.callback(_shut, end)
        self._start(lambda: _pump(client, server, heard=count_request))
        self._start(lambda: _pump(server, client, heard=replied))


@contextmanager
def counting(broker: BrokerSettings) -> Iterator[tuple[BrokerSettings, Counter]]:
    """Route a local broker's settings through a counting proxy."""
    addresses = [broker.url, *map(str, broker.options.values())]
    address = re.search(rf"{re.escape(LOOPBACK)}:(\d+)", " ".join(addresses))
    assert address, "it is nowhere on this machine"
    counter = Counter(int(address[1]))

    def led(value: object) -> object:
        to = f"{LOOPBACK}:{counter.port}"
        return value.replace(address[0], to) if isinstance(value, str) else value

    options = {name: led(value) for name, value in broker.options.items()}
    try:
        yield BrokerSettings(url=str(led(broker.url)), options=options), counter
    finally:
        counter.close()


def _pump(
    source: socket.socket,
    target: socket.socket,
    remaining: int | None = None,
    heard: Callable[[], None] = lambda: None,
) -> None:
    with suppress(OSError):
        while remaining != 0:
            data = source.recv(CHUNK if remaining is None else remaining)
            if not data:
                break
            heard()
            target.sendall(data)
            remaining = None if remaining is None else remaining - len(data)
    for end in (source, target):
        _shut(end)


def _shut(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
