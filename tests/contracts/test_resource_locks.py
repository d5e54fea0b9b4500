"""The contract of `ResourceLock`, on Postgres and on ZooKeeper."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from uuid import uuid4

import psycopg
import pytest

from poisonguard import Away, GuardError, Misconfigured, ResourceLockLost, Stopping
from poisonguard.locks import LockGrant, LockServer, ResourceLock, lock_server
from tests import preloaded_fork_server
from tests.brokers import zookeeper
from tests.contracts import lock_contender
from tests.contracts.postgres_and_zookeeper_lock_fixtures import (
    LockStage,
    PostgresLockStage,
    ZooKeeperLockStage,
)
from tests.waiting import wait_until

FORKS = preloaded_fork_server.of(lock_contender.__name__)
SOAK = "SOAK" in os.environ
# Processes, threads in each, and acquisitions of each thread.
PROCESSES, THREADS, TIMES = (8, 8, 157) if SOAK else (2, 6, 15)
# "Within a second", on a machine that has time.
PROMPT_SECONDS = 1.0 if SOAK else 20.0
PATIENCE, SOAK_PATIENCE = 60.0, 3_600.0 if SOAK else 300.0
BOTH = ("postgres", pytest.param("zookeeper", marks=pytest.mark.needs("zookeeper")))
# As docs/resource-lock.md has it.
FENCED_WRITE = "UPDATE invoices SET state = 'sent', fence = %s WHERE fence <= %s"


@pytest.fixture(scope="module")
def stage_of(
    dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], LockStage]]:
    """Start ZooKeeper at the first test that needs it."""
    stages: dict[str, LockStage] = {"postgres": PostgresLockStage(dsn)}

    def stage_of(kind: str) -> LockStage:
        if kind not in stages:
            server = zookeeper.ZooKeeperServer(tmp_path_factory.mktemp(kind))
            stages[kind] = ZooKeeperLockStage(server)
        return stages[kind]

    yield stage_of
    if isinstance(stage := stages.get("zookeeper"), ZooKeeperLockStage):
        stage.close()
        stage.server.stop()


@pytest.fixture(params=BOTH)
def stage(
    request: pytest.FixtureRequest, stage_of: Callable[[str], LockStage]
) -> LockStage:
    return stage_of(request.param)


@pytest.fixture
def resource() -> str:
    return f"invoices-{uuid4().hex}"


@pytest.fixture
def locks(stage: LockStage) -> Iterator[Callable[[str], ResourceLock]]:
    """Make locks with a session each, as those of different processes have."""
    locks_to_destroy: list[ResourceLock] = []

    def make(resource: str) -> ResourceLock:
        locks_to_destroy.append(ResourceLock(resource, stage.connect()))
        return locks_to_destroy[-1]

    yield make
    for lock in locks_to_destroy:
        lock.destroy()


class Waiter:
    """A thread that acquires a lock, notes it, and releases it when it may."""

    def __init__(self, lock: ResourceLock, notes: SimpleQueue[tuple[str, int]]) -> None:
        self.may_release = threading.Event()
        self.error: BaseException | None = None
        self._lock = lock
        self._notes = notes
        self.thread = threading.Thread(target=self._run, daemon=True)

    def join(self) -> None:
        self.may_release.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        try:
            with self._lock as grant:
                self._notes.put((self.thread.name, grant.fence))
                self.may_release.wait(PATIENCE)
        except GuardError as error:
            self.error = error


def queue_up(
    stage: LockStage, lock: ResourceLock, notes: SimpleQueue[tuple[str, int]]
) -> Waiter:
    """Let a thread wait for the lock, and wait until it has its place."""
    places = stage.places(lock.resource)
    waiter = Waiter(lock, notes)
    waiter.thread.start()
    wait_until(lambda: stage.places(lock.resource) == places + 1)
    return waiter


def acquired(lock: ResourceLock) -> LockGrant:
    grant = lock.acquire(PATIENCE)
    assert grant is not None
    return grant


@contextmanager
def killed_at_the_end(
    stage: LockStage, resource: str, fences: Path
) -> Iterator[Callable[[], None]]:
    """Let another process acquire the lock, or wait for it; yield what kills it."""
    places = stage.places(resource)
    process = FORKS.Process(
        target=lock_contender.hold,
        args=(stage.kind, stage.address, resource, str(fences)),
    )
    process.start()
    try:
        wait_until(lambda: stage.places(resource) == places + 1)
        yield process.kill
    finally:
        process.kill()
        process.join()


Locks = Callable[[str], ResourceLock]


def test_the_lock_goes_round_in_the_order_of_arrival(
    stage: LockStage, locks: Locks, resource: str
) -> None:
    notes = SimpleQueue[tuple[str, int]]()
    first = locks(resource)
    fence = acquired(first).fence
    waiters = [queue_up(stage, locks(resource), notes) for _ in range(4)]

    was_ours = first.release()
    order = []
    for waiter in waiters:
        order.append(notes.get(timeout=PATIENCE))
        assert notes.empty()
        waiter.join()

    fences = [fence, *(each for _, each in order)]
    assert was_ours
    assert [waiter.error for waiter in waiters] == [None] * 4
    assert [name for name, _ in order] == [each.thread.name for each in waiters]
    assert fences == sorted(set(fences))


def test_the_threads_of_one_object_queue_as_well(
    stage: LockStage, locks: Locks, resource: str
) -> None:
    notes = SimpleQueue[tuple[str, int]]()
    lock = locks(resource)
    grant = acquired(lock)
    waiters = [queue_up(stage, lock, notes) for _ in range(4)]

    assert (lock.fence, lock.lost) == (grant.fence, False)
    lock.release()
    names = []
    for waiter in waiters:
        names.append(notes.get(timeout=PATIENCE)[0])
        assert (lock.fence, lock.lost) == (None, True)  # those are other threads
        waiter.join()

    assert [waiter.error for waiter in waiters] == [None] * 4
    assert names == [each.thread.name for each in waiters]


def test_a_waiter_in_the_middle_dies_and_the_others_keep_their_places(
    stage: LockStage, locks: Locks, resource: str, tmp_path: Path
) -> None:
    notes = SimpleQueue[tuple[str, int]]()
    first = locks(resource)
    acquired(first)
    with killed_at_the_end(stage, resource, tmp_path / "fence") as kill:
        waiters = [queue_up(stage, locks(resource), notes) for _ in range(2)]
        kill()
        first.release()
        names = []
        for waiter in waiters:
            names.append(notes.get(timeout=PATIENCE)[0])
            waiter.join()

    assert [waiter.error for waiter in waiters] == [None] * 2
    assert names == [each.thread.name for each in waiters]
    assert not (tmp_path / "fence").exists()
    assert stage.places(resource) == 0


def test_a_killed_holder_loses_the_lock(
    stage: LockStage, locks: Locks, resource: str, tmp_path: Path
) -> None:
    path = tmp_path / "fence"
    with killed_at_the_end(stage, resource, path) as kill:
        fence = wait_until(lambda: path.exists() and path.read_text())
        assert locks(resource).acquire(0.01) is None
        kill()
        grant = acquired(locks(resource))

    assert grant.fence > int(fence)


def test_a_holder_without_session_knows_it_and_is_fenced(
    stage: LockStage, locks: Locks, resource: str, dsn: str
) -> None:
    server = stage.connect()
    lock = ResourceLock(resource, server)
    with (
        psycopg.connect(dsn) as connection,
        pytest.raises(ResourceLockLost, match="another holder"),
        lock as old,
    ):
        connection.execute(
            "CREATE TEMPORARY TABLE invoices AS SELECT %s AS fence, 'new' AS state",
            [old.fence],
        )
        assert not lock.lost

        stage.end_session(server)
        ended_at = time.monotonic()
        wait_until(lambda: lock.lost)
        seconds = time.monotonic() - ended_at
        new = acquired(locks(resource))
        writes = [
            connection.execute(FENCED_WRITE, [grant.fence, grant.fence]).rowcount
            for grant in (new, old)
        ]

        assert seconds < PROMPT_SECONDS
        assert writes == [1, 0]
        assert (old.lost, new.lost) == (True, False)
    lock.destroy()


def test_a_lost_lock_can_be_acquired_again_by_the_same_thread(
    stage: LockStage, locks: Locks, resource: str
) -> None:
    lock = locks(resource)
    old = acquired(lock)
    with pytest.raises(RuntimeError, match="has acquired"):
        lock.acquire()

    stage.end_session(lock._server)
    wait_until(lambda: lock.lost)
    new = acquired(lock)

    assert new.fence > old.fence
    assert (old.release(), lock.release()) == (False, True)
    with pytest.raises(RuntimeError, match="has not acquired"):
        lock.release()


def test_a_waiter_whose_session_ends_is_told(
    stage: LockStage, locks: Locks, resource: str
) -> None:
    acquired(locks(resource))
    lock = locks(resource)
    waiter = queue_up(stage, lock, SimpleQueue())

    stage.end_session(lock._server)
    waiter.join()

    assert isinstance(waiter.error, Away)


def test_an_acquire_that_timed_out_leaves_nothing_behind(
    stage: LockStage,
    locks: Locks,
    resource: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine, a first answer takes longer than a caller waits for it.
    monkeypatch.setattr(lock_server, "FIRST_ANSWER_SECONDS", PATIENCE)
    first, second, third = locks(resource), locks(resource), locks(resource)
    acquired(first)
    began = time.monotonic()
    grants = [second.acquire(0), second.acquire(0.1), second.acquire(0.1)]
    seconds = time.monotonic() - began

    wait_until(lambda: stage.places(resource) == 1)
    first.release()

    assert grants == [None] * 3
    assert seconds < PATIENCE / 2
    assert third.acquire(0) is not None
    assert stage.places(resource) == 1


def test_opposite_orders_time_out_and_hold_up_nobody_else(
    stage: LockStage, locks: Locks, resource: str
) -> None:
    one, other = f"{resource}-1", f"{resource}-2"
    both_have_one = threading.Barrier(2)
    servers = [stage.connect(), stage.connect()]
    outcomes = SimpleQueue[bool]()

    def work(server: LockServer, first: str, second: str) -> None:
        inner = ResourceLock(second, server)
        with closing_lock(ResourceLock(first, server)) as outer, outer:
            both_have_one.wait(PATIENCE)
            outcomes.put(inner.acquire(1.0) is None)
        inner.destroy()

    threads = [
        threading.Thread(target=work, args=(servers[0], one, other)),
        threading.Thread(target=work, args=(servers[1], other, one)),
    ]
    for thread in threads:
        thread.start()
    bystander = ResourceLock(f"{resource}-3", servers[0])
    while any(thread.is_alive() for thread in threads):
        with bystander:
            time.sleep(0.01)
    bystander.destroy()

    timed_out = [outcomes.get(), outcomes.get()]
    assert any(timed_out)
    assert acquired(locks(one)).fence
    assert acquired(locks(other)).fence


@contextmanager
def closing_lock(lock: ResourceLock) -> Iterator[ResourceLock]:
    yield lock
    lock.destroy()


def test_never_two_holders(stage: LockStage, resource: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_bytes(bytes(lock_contender.LEDGER.size))
    processes = [
        FORKS.Process(
            target=lock_contender.contend,
            args=(stage.kind, stage.address, resource, str(ledger), THREADS, TIMES),
        )
        for _ in range(PROCESSES)
    ]

    for process in processes:
        process.start()
    for process in processes:
        process.join(SOAK_PATIENCE)
        process.kill()  # where it hangs
        process.join()

    holder, _, count, faults = lock_contender.LEDGER.unpack(ledger.read_bytes())
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert (holder, count, faults) == (0, PROCESSES * THREADS * TIMES, 0)
    wait_until(lambda: stage.places(resource) == 0)


def test_destroy_releases_ends_waits_and_closes_the_connection(
    stage: LockStage, resource: str
) -> None:
    threads = threading.active_count()
    lock = ResourceLock(resource, stage.connect())
    grant = acquired(lock)
    waiter = queue_up(stage, lock, SimpleQueue())

    lock.destroy()
    lock.destroy()
    waiter.join()

    assert isinstance(waiter.error, Stopping)
    assert grant.lost
    wait_until(lambda: stage.places(resource) == 0)
    wait_until(lambda: threading.active_count() <= threads)
    with pytest.raises(Stopping):
        lock.acquire()


class UsersWithLateComer(set[object]):
    """The users of a server, whom another joins where it is asked whether any is left.

    It is given a second to acquire, which it need not have.
    """

    def __init__(self, users: set[object], come: Callable[[], None]) -> None:
        super().__init__(users)
        self.thread = threading.Thread(target=come, daemon=True)

    def __bool__(self) -> bool:
        is_any_left = len(self) > 0
        self.thread.start()
        self.thread.join(1.0)
        return is_any_left


def test_who_comes_while_the_last_one_leaves_keeps_its_grant(
    stage: LockStage, resource: str
) -> None:
    server = stage.connect()
    late: list[ResourceLock] = []
    grants: list[LockGrant] = []

    def come() -> None:
        late.append(ResourceLock(f"{resource}-late", server))
        grants.append(acquired(late[0]))

    last = ResourceLock(resource, server)
    acquired(last)
    server._users = users = UsersWithLateComer(server._users, come)
    last.destroy()
    users.thread.join(PATIENCE)

    server._users = set(users)
    assert [grant.lost for grant in grants] == [False]
    late[0].destroy()
    assert grants[0].lost


def test_a_child_does_not_have_the_locks_of_its_parent(
    stage: LockStage, resource: str, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    process = FORKS.Process(
        target=lock_contender.fork_with_lock,
        args=(stage.kind, stage.address, resource, str(answer)),
    )

    process.start()
    process.join(PATIENCE)
    process.kill()  # where it hangs
    process.join()

    assert process.exitcode == 0
    # The child's lock is lost and not to be had; the parent's is not.
    assert answer.read_text() == "True None True False True"


def test_a_child_does_not_wait_for_threads_of_its_parent(
    stage: LockStage, resource: str, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    process = FORKS.Process(
        target=lock_contender.fork_while_mutexes_are_locked,
        args=(stage.kind, stage.address, resource, str(answer)),
    )

    process.start()
    process.join(PATIENCE)
    process.kill()  # where it hangs
    process.join()

    assert process.exitcode == 0
    assert answer.read_text() == "False False False True"


def test_an_unreachable_server_is_told(stage: LockStage) -> None:
    lock = ResourceLock("invoices", stage.unreachable())

    with pytest.raises(Away):
        lock.acquire(PATIENCE)
    lock.destroy()


@pytest.mark.parametrize("name", [".", "..", "a/b", "%2F", "ä €", "x" * 255])
def test_locks_with_unusual_names_are_acquired_and_exclude(
    stage: LockStage, locks: Locks, name: str
) -> None:
    with locks(name):
        assert locks(name).acquire(0) is None


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "\ud800", None])
def test_unusable_names_are_refused(stage: LockStage, name: str) -> None:
    with pytest.raises(Misconfigured, match="give a text"):
        ResourceLock(name, stage.connect())


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "1", True])
def test_unusable_timeouts_are_refused(
    stage: LockStage, locks: Locks, timeout: float
) -> None:
    with pytest.raises(Misconfigured, match="give seconds"):
        locks("invoices").acquire(timeout)
