"""`ZooKeeperLocks`: what is true of nodes, watches and sessions."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from kazoo.retry import ForceRetryError

from poisonguard import Away, Misconfigured
from poisonguard.locks import ResourceLock
from poisonguard.locks.zookeeper import (
    LONGEST_PAUSE,
    ROOT,
    ZooKeeperLocks,
    ZooKeeperSession,
)
from tests.brokers import zookeeper
from tests.contracts.lock_contender import LONG_SESSION_SECONDS
from tests.contracts.postgres_and_zookeeper_lock_fixtures import (
    LinkProxy,
    ZooKeeperLockStage,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("zookeeper")

PATIENCE = 60.0
# As soon as kazoo reads the end of its connection, on a machine that has time.
PROMPT_SECONDS = 1 if "SOAK" in os.environ else 20
WAITERS = 5


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperLockStage]:
    server = zookeeper.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    stage = ZooKeeperLockStage(server)
    yield stage
    stage.close()
    server.stop()


@pytest.fixture
def resource() -> str:
    return f"invoices-{uuid4().hex}"


Patient = Callable[[str], ZooKeeperLocks]


@pytest.fixture
def patient() -> Iterator[Patient]:
    """Make locks whose session no late answer of a busy machine ends.

    They end with the test, also if it fails: a client that connects again and again
    disturbs what comes next in this process.
    """
    servers = list[ZooKeeperLocks]()

    def connect(hosts: str) -> ZooKeeperLocks:
        servers.append(ZooKeeperLocks(hosts, session_timeout=LONG_SESSION_SECONDS))
        return servers[-1]

    yield connect
    for server in servers:
        server.close()


def test_each_waiter_watches_the_next_lower_node_only(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    server = patient(stage.address)
    lock = ResourceLock(resource, server)
    assert lock.acquire()
    before = stage.server.watches()

    waits = [server.attempt(resource) for _ in range(WAITERS)]
    wait_until(lambda: stage.server.watches() == before + WAITERS)
    lock.release()
    wait_until(lambda: any(wait._grant for wait in waits))

    assert stage.server.watches() == before + WAITERS - 1
    assert sum(wait._grant is not None for wait in waits) == 1
    lock.destroy()


def test_a_lost_answer_to_create_leaves_one_node(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    proxy = LinkProxy(stage.server.port, cut_after=b"__lock__")
    lock = ResourceLock(resource, patient(f"127.0.0.1:{proxy.port}"))

    grant = lock.acquire(PATIENCE)

    assert proxy.cuts == 1
    assert grant is not None
    assert stage.places(resource) == 1
    assert (grant.lost, lock.release(), stage.places(resource)) == (False, True, 0)
    lock.destroy()
    proxy.close()


def test_a_suspended_connection_is_a_lost_lock_for_ever(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    proxy = LinkProxy(stage.server.port)
    server = patient(f"127.0.0.1:{proxy.port}")
    lock = ResourceLock(resource, server)
    assert lock.acquire(PATIENCE)
    session = server._session
    assert session is not None

    proxy.cut()
    wait_until(lambda: lock.lost, seconds=PROMPT_SECONDS)
    wait_until(lambda: session.client.connected)

    # The session lives, and the node with it, but there was a time without an answer.
    assert (lock.lost, stage.places(resource)) == (True, 1)
    assert (lock.release(), stage.places(resource)) == (False, 0)
    with lock:
        assert not lock.lost
    lock.destroy()
    proxy.close()


def test_a_node_is_removed_though_the_connection_is_lost_meanwhile(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    proxy = LinkProxy(stage.server.port)
    server = patient(f"127.0.0.1:{proxy.port}")
    lock = ResourceLock(resource, server)
    assert lock.acquire(PATIENCE)
    watches = stage.server.watches()
    wait = server.attempt(resource)
    wait_until(lambda: stage.server.watches() == watches + 1)

    # Its caller gives up, and nothing gets through for a while.
    proxy.silence()
    began = time.monotonic()
    timed_out = wait.wait(0)
    waited = time.monotonic() - began
    wait_until(lambda: proxy.swallowed)  # the recipe has tried to delete its node
    proxy.speak()
    proxy.cut()

    assert timed_out is None
    assert waited < PATIENCE / 2
    wait_until(lambda: stage.places(resource) == 1)
    lock.destroy()
    proxy.close()


def test_a_fence_is_the_transaction_that_made_the_node(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    lock = ResourceLock(resource, patient(stage.address))
    with lock as grant:
        (node,) = stage.client.get_children(f"{ROOT}/{resource}")
        _, stat = stage.client.get(f"{ROOT}/{resource}/{node}")
    lock.destroy()
    # Nodes are numbered from 0 again below a path that was deleted; transactions not.
    stage.client.delete(f"{ROOT}/{resource}")
    lock = ResourceLock(resource, patient(stage.address))
    with lock as later:
        assert later.fence > grant.fence == stat.czxid
    lock.destroy()


def test_a_restart_of_zookeeper_is_sat_out_by_those_who_wait(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    proxy = LinkProxy(stage.server.port)
    holder = ResourceLock(resource, patient(f"127.0.0.1:{proxy.port}"))
    waiting = patient(f"127.0.0.1:{proxy.port}")
    assert holder.acquire(PATIENCE)
    wait = waiting.attempt(resource)
    wait_until(lambda: stage.places(resource) == 2)

    stage.kill()
    wait_until(lambda: holder.lost)
    proxy.silence()
    stage.start()
    proxy.speak()
    proxy.cut()
    was_ours = holder.release()
    grant = wait.wait(PATIENCE)

    assert was_ours is False
    assert grant is not None
    assert not grant.lost
    holder.destroy()
    waiting.close()
    proxy.close()


def test_without_kazoo_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "poisonguard.locks.zookeeper")

    with pytest.raises(ImportError, match=r"pip install 'poisonguard\[zookeeper\]'"):
        importlib.import_module("poisonguard.locks.zookeeper")


@pytest.mark.parametrize("root", ["", "locks", "/locks/"])
def test_an_unusable_root_is_refused(root: str) -> None:
    with pytest.raises(Misconfigured, match="root"):
        ZooKeeperLocks("127.0.0.1:1", root=root)


def test_it_asks_again_soon_however_long_a_server_was_away() -> None:
    session = ZooKeeperSession({"hosts": "127.0.0.1:1", "timeout": 60.0})
    pauses = list[float]()
    retry = session.client._conn_retry.copy()
    retry.sleep_func, retry.interrupt = pauses.append, None
    failures = iter([True] * 12)

    def connect() -> None:
        if next(failures, False):
            raise ForceRetryError

    retry(connect)
    session.close()

    assert len(pauses) == 12
    assert max(pauses) < 2 * LONGEST_PAUSE


def test_no_thread_stays_for_a_server_that_was_away() -> None:
    server = ZooKeeperLocks("127.0.0.1:1", session_timeout=0.2)
    lock = ResourceLock("invoices", server)

    with pytest.raises(Away):
        lock.acquire(PATIENCE)

    wait_until(lambda: "poisonguard lock" not in map(name_of, threading.enumerate()))
    lock.destroy()


def name_of(thread: threading.Thread) -> str:
    return thread.name


def test_a_frozen_server_ends_no_wait_late(
    stage: ZooKeeperLockStage, resource: str, patient: Patient
) -> None:
    lock = ResourceLock(resource, patient(stage.address))
    with lock:
        pass
    stage.server.freeze()
    try:
        began = time.monotonic()
        grant = lock.acquire(0.1)
        seconds = time.monotonic() - began
    finally:
        stage.server.thaw()

    assert grant is None
    assert seconds < PATIENCE / 2
    wait_until(lambda: stage.places(resource) == 0)
    lock.destroy()
