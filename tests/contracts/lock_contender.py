"""Processes that contend for a lock, forked to be killed or counted."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from poisonguard.locks import LockGrant, LockServer, ResourceLock
from poisonguard.locks.postgres import PostgresLocks
from poisonguard.locks.zookeeper import ZooKeeperLocks

# Of ZooKeeper: how long it waits for a process that was killed. A client takes its
# connection for lost where an answer is late by a small part of that.
SESSION_SECONDS, LONG_SESSION_SECONDS = 10.0, 60.0
FAR_AWAY = 3_600.0
LEDGER = struct.Struct("4Q")  # the holder, the last fence, grants, and faults


def connect(
    kind: str, address: str, *, session_seconds: float = LONG_SESSION_SECONDS
) -> LockServer:
    if kind == "postgres":
        return PostgresLocks(address)
    return ZooKeeperLocks(address, session_timeout=session_seconds)


def connect_patiently(kind: str, address: str) -> LockServer:
    """Connect so that a busy machine ends no session of locks."""
    if kind == "postgres":
        return PostgresLocks(address, look_every=FAR_AWAY)
    return ZooKeeperLocks(address, session_timeout=LONG_SESSION_SECONDS)


def hold(kind: str, address: str, resource: str, fences: str) -> None:
    """Acquire a lock, write down the fence, and never release it."""
    server = connect(kind, address, session_seconds=SESSION_SECONDS)
    grant = ResourceLock(resource, server).acquire()
    assert grant is not None
    Path(fences).write_text(str(grant.fence))
    time.sleep(FAR_AWAY)


def contend(
    kind: str, address: str, resource: str, path: str, threads: int, times: int
) -> None:
    """Acquire a lock so often in each of so many threads; note it in the ledger.

    A release calls the next waiter, which need not look for it.
    """
    lock = ResourceLock(resource, connect_patiently(kind, address))
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as ledger:

        def work(number: int) -> None:
            for _ in range(times):
                with lock as grant:
                    _note(ledger, os.getpid() << 16 | number, grant)

        with ThreadPoolExecutor(threads) as pool:
            for result in [pool.submit(work, number) for number in range(threads)]:
                result.result()
    lock.destroy()


def _note(ledger: mmap.mmap, name: int, grant: LockGrant) -> None:
    holder, last_fence, count, faults = LEDGER.unpack_from(ledger)
    faults += holder != 0 or grant.fence <= last_fence or grant.lost
    LEDGER.pack_into(ledger, 0, name, grant.fence, count, faults)
    time.sleep(0)  # another holder would have its turn now
    faults += LEDGER.unpack_from(ledger)[0] != name
    LEDGER.pack_into(ledger, 0, 0, grant.fence, count + 1, faults)


def fork_with_grant(address: str, resource: str, answer: str) -> None:
    """Fork where only the grant knows the session; note as in `fork_with_lock`."""
    grant = PostgresLocks(address).attempt(resource).wait(60)
    assert grant is not None
    pid = os.fork()
    if pid == 0:
        Path(answer).write_text(f"{grant.lost} {grant.release()}")
        os._exit(0)
    os.waitpid(pid, 0)
    with Path(answer).open("a") as file:
        file.write(f" {grant.lost} {grant.release()}")


def fork_while_mutexes_are_locked(
    kind: str, address: str, resource: str, answer: str
) -> None:
    """Fork while other threads, which the child does not have, are inside a lock."""
    lock = ResourceLock(resource, connect(kind, address))
    grant = lock.acquire()
    assert grant is not None
    with lock._mutex, lock._server._mutex, grant._release_mutex:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # it must not hang for ever
            outcome = f"{grant.release()} {lock.release()}"
            lock.destroy()
            Path(answer).write_text(outcome)
            os._exit(0)
    os.waitpid(pid, 0)
    with Path(answer).open("a") as file:
        file.write(f" {lock.lost} {lock.release()}")
    lock.destroy()


def fork_with_lock(kind: str, address: str, resource: str, answer: str) -> None:
    """Fork while holding the lock; note what the child and then the parent see."""
    lock = ResourceLock(resource, connect(kind, address))
    assert lock.acquire()
    pid = os.fork()
    if pid == 0:
        own = lock.lost
        other = lock.acquire(0.1)
        elsewhere = ResourceLock(f"{resource} of the child", lock._server).acquire(60)
        outcome = f"{own} {other} {elsewhere is not None}"
        Path(answer).write_text(outcome)
        os._exit(0)
    os.waitpid(pid, 0)
    with Path(answer).open("a") as file:
        file.write(f" {lock.lost} {lock.release()}")
    lock.destroy()
