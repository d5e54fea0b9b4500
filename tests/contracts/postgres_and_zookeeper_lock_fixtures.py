"""What the contract of locks needs of Postgres and of ZooKeeper."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from poisonguard.locks import LockServer
from poisonguard.locks.postgres import PostgresLocks, schema
from poisonguard.locks.zookeeper import ROOT, ZooKeeperLocks
from poisonweb.embedded.free_ports import LOOPBACK
from tests.brokers import zookeeper
from tests.contracts.lock_contender import LONG_SESSION_SECONDS, connect
from tests.database_removal import drop_database


class LockStage(ABC):
    """A server of locks, as the tests see it from outside."""

    kind: str
    address: str

    def connect(self) -> LockServer:
        return connect(self.kind, self.address)

    @abstractmethod
    def places(self, resource: str) -> int:
        """Return how many have the lock or wait for it."""

    @abstractmethod
    def end_session(self, server: LockServer) -> None:
        """End a session of locks, without a word to its process."""

    @abstractmethod
    def unreachable(self) -> LockServer:
        """Return a lock server at an address without one."""


class PostgresLockStage(LockStage):
    kind = "postgres"

    def __init__(self, dsn: str) -> None:
        self.address = dsn

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.address, autocommit=True) as connection:
            return connection.execute(statement, values).fetchall()

    def places(self, resource: str) -> int:
        statement = "SELECT count(*) FROM poisonguard_lock_tickets WHERE resource = %s"
        ((number,),) = self.query(statement, resource)
        return int(number)

    def end_session(self, server: LockServer) -> None:
        assert isinstance(server, PostgresLocks)
        assert server._queues is not None
        assert server._queues._connection is not None
        pid = server._queues._connection._pid
        self.query("SELECT pg_terminate_backend(%s, 10000)", pid)

    def unreachable(self) -> LockServer:
        return PostgresLocks("postgresql://nobody@127.0.0.1:1/none")


class ZooKeeperLockStage(LockStage):
    kind = "zookeeper"

    def __init__(self, server: zookeeper.ZooKeeperServer) -> None:
        self.server = server
        self.address = server.hosts
        self.client = self._started_client()

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def kill(self) -> None:
        self.close()
        self.server.kill()

    def start(self) -> None:
        """Start the killed server.

        A client that connects while ZooKeeper starts may wait for the answer as long
        as its session lasts.
        """
        self.server.start()
        self.client = self._started_client()

    def _started_client(self) -> KazooClient:
        client = KazooClient(hosts=self.address, timeout=LONG_SESSION_SECONDS)
        client.start()
        return client

    def places(self, resource: str) -> int:
        try:
            return len(self.client.get_children(f"{ROOT}/{resource}"))
        except NoNodeError:
            return 0

    def end_session(self, server: LockServer) -> None:
        assert isinstance(server, ZooKeeperLocks)
        assert server._session is not None
        self.server.expire(server._session.client)

    def unreachable(self) -> LockServer:
        return ZooKeeperLocks(f"{LOOPBACK}:1", session_timeout=0.5)


@contextmanager
def lock_database(encoding: str = "UTF8") -> Iterator[str]:
    """Make a database of its own, with the tables of the locks."""
    url, name = os.environ["DATABASE_URL"], f"locks_{uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'"
            " LOCALE 'C'"
        )
    dsn = urlsplit(url)._replace(path=f"/{name}").geturl()
    try:
        with psycopg.connect(dsn) as connection:
            connection.execute(schema())
            connection.execute(schema())  # a second time makes nothing new
        yield dsn
    finally:
        with psycopg.connect(url, autocommit=True) as server:
            drop_database(name, server)


class LinkProxy:
    """A loopback port in front of another, whose links can be cut and silenced.

    With `cut_after`, the first answer to a request that has these bytes is swallowed,
    and the link cut.
    """

    def __init__(self, behind: int, *, cut_after: bytes | None = None) -> None:
        self._behind = behind
        self._cut_after = cut_after
        self._is_silent = False
        self._silent_after: bytes | None = None
        self._is_cut_at_next_answer = False
        self._links: list[socket.socket] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = self.swallowed = 0
        self._threads: list[Thread] = []
        self._start(self._accept)

    def silence(self) -> None:
        """Keep the proxy's links open, and pass nothing on."""
        self._is_silent = True

    def silence_after(self, request: bytes) -> None:
        """Be silent from the first request on that has these bytes."""
        self._silent_after = request

    def speak(self) -> None:
        self._is_silent = False

    def cut(self) -> None:
        for link in self._links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()  # no link comes after this
        self.cut()
        for thread in self._threads:
            thread.join()
        for link in self._links:
            link.close()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._links.append(client)
                try:
                    server = socket.create_connection((LOOPBACK, self._behind))
                except ConnectionRefusedError:
                    client.shutdown(socket.SHUT_RDWR)
                    continue
                self._links.append(server)
                self._start(partial(self._pass_on, client, server))
                self._start(partial(self._pass_on, server, client))

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if self._is_cut_at_next_answer:
                    self._is_cut_at_next_answer = False
                    self.cuts += 1
                    self.cut()
                    break
                if self._cut_after is not None and self._cut_after in data:
                    self._cut_after = None
                    self._is_cut_at_next_answer = True
                if self._silent_after is not None and self._silent_after in data:
                    self._is_silent = True
                if self._is_silent:
                    self.swallowed += len(data)
                else:
                    target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
