"""Locks in ZooKeeper, by the Lock recipe of kazoo.

The recipe takes a node for each `acquire`, finds it again when the answer to its
`create` is lost, and watches the next lower node only. Added here: a time-out that
holds while the connection hangs, the removal of a node however often the connection is
lost, `lost`, and the fence.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        CancelledError,
        ConnectionClosedError,
        KazooException,
        NoNodeError,
    )
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.protocol.states import KazooState
    from kazoo.retry import KazooRetry
except ImportError as missing:
    raise ImportError(
        "poisonguard.locks.zookeeper needs kazoo: pip install 'poisonguard[zookeeper]'"
    ) from missing

from poisonguard.errors import Away, Misconfigured
from poisonguard.locks.lock_server import (
    ANSWER_SECONDS,
    LockAttempt,
    LockGrant,
    LockServer,
)

ROOT = "/poisonguard/locks"
SESSION_SECONDS = 10.0
# kazoo's pauses grow to a minute, in which others would wait for our node.
LONGEST_PAUSE = 1.0


class ZooKeeperLocks(LockServer):
    """One session of ZooKeeper for all locks of a process.

    A process that neither answers nor ends loses its locks after `session_timeout`
    seconds. `client_options` go to kazoo's client, such as `use_ssl` or `auth_data`.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout: float = SESSION_SECONDS,
        root: str = ROOT,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not root.startswith("/") or root.endswith("/"):
            raise Misconfigured(f"ZooKeeperLocks: root is {root!r}: give /a/path.")
        self._root = root
        self._options: dict[str, Any] = {
            **(client_options or {}),
            "hosts": hosts,
            "timeout": session_timeout,
        }
        self._session: ZooKeeperSession | None = None

    def attempt(self, resource: str) -> LockAttempt:
        """Join ZooKeeper's queue for a lock; return the attempt to wait on."""
        with self._mutex:
            if self._session is None:
                self._session = ZooKeeperSession(self._options)
            attempt = NodeAttempt(resource, self._path(resource), self._session)
        attempt.start()
        return attempt

    def _detach(self) -> ZooKeeperSession | None:
        session, self._session = self._session, None
        return session

    def _path(self, resource: str) -> str:
        # "." and ".." may not be names of nodes.
        return f"{self._root}/{quote(resource, safe='').replace('.', '%2E')}"


class ZooKeeperSession:
    """A client of kazoo, which opens a new session whenever one expires.

    `interruptions` counts how often the connection was lost: a grant of before the last
    one may be another holder's by now.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.interruptions = 0
        self.attempts: set[NodeAttempt] = set()
        self._seconds: float = options["timeout"]
        self._pid = os.getpid()
        handler = SequentialThreadingHandler()
        handler.sleep_func = _pause
        # Between connections kazoo pauses piece by piece, each shorter than a `_pause`.
        pauses = {"max_tries": -1, "max_delay": LONGEST_PAUSE, "sleep_func": _pause}
        retries = {"connection_retry": pauses, "command_retry": pauses}
        self.client = KazooClient(handler=handler, **{**retries, **options})
        self.client.add_listener(self._note_state)
        self._is_live = self.client.start_async()

    @property
    def is_of_parent(self) -> bool:
        """Tell whether this is a forked child, barred from the ZooKeeper session."""
        return os.getpid() != self._pid

    def connect(self) -> None:
        """Wait until ZooKeeper answers; raise Away if it does not."""
        if not self._is_live.wait(self._seconds):
            raise Away(
                f"ZooKeeper has not answered for {self._seconds:g} s: check its"
                " addresses, and that it runs."
            )

    def is_lost(self, interruptions: int) -> bool:
        """Tell whether a lock granted earlier may be another holder's by now.

        `interruptions` is the count of lost connections at that grant.
        """
        return (
            interruptions != self.interruptions
            or not self.client.connected
            or self.is_of_parent
        )

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    def _note_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self.interruptions += 1
        if state == KazooState.LOST:
            for attempt in list(self.attempts):
                attempt.cancel()


class NodeAttempt(LockAttempt):
    """An `acquire` in a thread of its own: calls of kazoo hang without a connection."""

    def __init__(self, resource: str, path: str, session: ZooKeeperSession) -> None:
        super().__init__(resource)
        self._path = path
        self._session = session
        name = f"{socket.gethostname()} {os.getpid()}"
        self._lock = session.client.Lock(path, name)
        self._lock.wake_event = WakeEvent(self)

    def start(self) -> None:
        threading.Thread(target=self._run, name="poisonguard lock", daemon=True).start()

    def cancel(self) -> None:
        """Cancel the wait for ZooKeeper's lock, as soon as kazoo does not hang."""
        self._lock.cancel()

    def remove_nodes(self) -> None:
        """Delete ZooKeeper nodes of this attempt, however often connections break.

        A node that stayed would block the queue for as long as the session lives.
        """
        retry = KazooRetry(max_tries=-1, sleep_func=_pause)
        # A client that was closed has ended its session, and its nodes with it.
        with suppress(ConnectionClosedError):
            retry(self._delete_nodes)

    def _leave_queue(self) -> None:
        self.cancel()

    def _run(self) -> None:
        session = self._session
        session.attempts.add(self)
        try:
            session.connect()
            granted = self._lock.acquire() and self.grant(self._granted())
        except Away as error:
            self.fail(error)
            granted = False
        except CancelledError:
            self.fail(Away("The session of ZooKeeper has expired, and our place."))
            granted = False
        except (KazooException, KazooTimeoutError) as error:
            self.fail(Away(f"ZooKeeper does not answer: {error!r}"))
            granted = False
        finally:
            session.attempts.discard(self)
        # Otherwise a thread of each attempt would wait until the server answers again.
        if not granted and self._lock.create_tried:
            self.remove_nodes()

    def _granted(self) -> NodeGrant:
        """Return the ZooKeeper lock's grant, with its fence.

        Raise Away if its node is gone.
        """
        session = self._session
        node = f"{self._path}/{self._lock.node}"
        while True:
            interruptions = session.interruptions
            stat = session.client.retry(session.client.exists, node)
            if stat is None:
                raise Away("The session of ZooKeeper has expired, and our place.")
            if not session.is_lost(interruptions):
                return NodeGrant(self, node, stat.czxid, session, interruptions)

    def _delete_nodes(self) -> None:
        client = self._session.client
        with suppress(NoNodeError):
            for name in client.get_children(self._path):
                if name.startswith(self._lock.prefix):
                    client.delete(f"{self._path}/{name}")


class WakeEvent(threading.Event):
    """The recipe waits for it once it watches another node."""

    def __init__(self, attempt: NodeAttempt) -> None:
        super().__init__()
        self._attempt = attempt

    def wait(self, timeout: float | None = None) -> bool:
        self._attempt.note_place()
        return super().wait(timeout)


class NodeGrant(LockGrant):
    """The lowest node of its resource; its fence is the transaction that made it."""

    def __init__(
        self,
        attempt: NodeAttempt,
        node: str,
        fence: int,
        session: ZooKeeperSession,
        interruptions: int,
    ) -> None:
        super().__init__(attempt.resource, fence)
        self._attempt = attempt
        self._node = node
        self._session = session
        self._interruptions = interruptions

    def _is_lost(self) -> bool:
        return self._session.is_lost(self._interruptions)

    def _release(self) -> bool:
        was_lost = self._is_lost()
        if self._session.is_of_parent:
            return False
        try:
            self._session.client.delete_async(self._node).get(timeout=ANSWER_SECONDS)
        except NoNodeError:
            return False
        except (KazooException, KazooTimeoutError):
            threading.Thread(target=self._attempt.remove_nodes, daemon=True).start()
            return False
        return not was_lost


def _pause(seconds: float) -> None:
    time.sleep(min(seconds, LONGEST_PAUSE))
