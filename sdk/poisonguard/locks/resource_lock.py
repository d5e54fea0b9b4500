"""`ResourceLock`: one holder at a time, over all threads and processes, first come."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet

from poisonguard.errors import Misconfigured, ResourceLockLost, Stopping
from poisonguard.locks.lock_server import LockAttempt, LockGrant, LockServer

NAME_LIMIT = 255  # characters
DESTROYED = "The lock was destroyed."


class ResourceLock:
    """A lock on a resource, which is a name that all its users have agreed on.

    Many threads may share one object: each has a place in the queue of its own, and
    `fence` and `lost` are those of the calling thread. `acquire` and `with` give a
    `LockGrant`, which other threads may use. It is not reentrant.
    """

    def __init__(self, resource: str, server: LockServer) -> None:
        self.resource = _checked_name(resource)
        self._server = server
        self._mutex = threading.Lock()
        self._by_thread = threading.local()
        self._attempts: set[LockAttempt] = set()
        self._grants: set[LockGrant] = set()
        self._is_destroyed = False
        _locks.add(self)
        server.enter(self)

    @property
    def fence(self) -> int | None:
        """Return the fence of this thread's grant of the lock; None without one."""
        grant = self._own_grant()
        return None if grant is None else grant.fence

    @property
    def lost(self) -> bool:
        """Tell if another holder than this thread is possible; True without a grant."""
        grant = self._own_grant()
        return grant is None or grant.lost

    def acquire(self, timeout: float | None = None) -> LockGrant | None:
        """Wait for the lock, and return its grant; None after `timeout` seconds.

        Raises Away if the server cannot be reached, or the place in the queue is lost.
        """
        _check_timeout(timeout)
        self._give_back_lost_grant()
        attempt = self._begin()
        try:
            grant = attempt.wait(timeout)
        finally:
            with self._mutex:
                self._attempts.discard(attempt)
        if grant is not None:
            self._keep(grant)
        return grant

    def release(self) -> bool:
        """Give this thread's lock back; return whether it was ours until then."""
        grant = self._own_grant()
        if grant is None:
            raise RuntimeError(f"This thread has not acquired {self.resource!r}.")
        self._forget(grant)
        return grant.release()

    def destroy(self) -> None:
        """Release the lock's grants, end its waits; a server's last lock closes it.

        Threads that wait raise Stopping, and so does every later `acquire`.
        """
        with self._mutex:
            attempts, grants = [*self._attempts], [*self._grants]
            was_destroyed, self._is_destroyed = self._is_destroyed, True
        for attempt in attempts:
            attempt.withdraw()
            attempt.fail(Stopping(DESTROYED))
        for grant in grants:
            grant.release()
        if not was_destroyed:
            self._server.leave(self)

    def reset_after_fork(self) -> None:
        """Leave the lock's grants and waits to the parent, in a forked child."""
        self._mutex = threading.Lock()
        self._attempts.clear()
        self._grants.clear()

    def __enter__(self) -> LockGrant:
        grant = self.acquire()
        assert grant is not None  # noqa: S101 - there is no time-out
        return grant

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.release() and error is None:
            raise ResourceLockLost(
                f"The lock on {self.resource!r} was lost before the end of its block:"
                " another holder may have worked at the same time."
            )

    def _own_grant(self) -> LockGrant | None:
        grant: LockGrant | None = getattr(self._by_thread, "grant", None)
        return grant

    def _begin(self) -> LockAttempt:
        """Join the lock's queue at its server, so that `destroy` can end the wait."""
        with self._mutex:
            if self._is_destroyed:
                raise Stopping(DESTROYED)
            attempt = self._server.attempt(self.resource)
            self._attempts.add(attempt)
        return attempt

    def _keep(self, grant: LockGrant) -> None:
        """Make a lock's grant this thread's, unless the lock has been destroyed.

        In that case release the grant and raise Stopping.
        """
        with self._mutex:
            is_destroyed = self._is_destroyed
            if not is_destroyed:
                self._grants.add(grant)
                self._by_thread.grant = grant
        if is_destroyed:
            grant.release()
            raise Stopping(DESTROYED)

    def _forget(self, grant: LockGrant) -> None:
        with self._mutex:
            self._grants.discard(grant)
            self._by_thread.grant = None

    def _give_back_lost_grant(self) -> None:
        """Release this thread's grant of the lock if it was lost.

        Raise RuntimeError if it was not: the thread would wait for itself.
        """
        grant = self._own_grant()
        if grant is None:
            return
        if not grant.lost:
            raise RuntimeError(f"This thread has acquired {self.resource!r} already.")
        self._forget(grant)
        grant.release()


_locks: WeakSet[ResourceLock] = WeakSet()


def _reset_all_after_fork() -> None:
    for lock in list(_locks):
        lock.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)


def _checked_name(resource: object) -> str:
    """Return a resource's usable name; raise Misconfigured for another one."""
    if (
        not isinstance(resource, str)
        or not 0 < len(resource) <= NAME_LIMIT
        or "\0" in resource
        or any("\ud800" <= letter <= "\udfff" for letter in resource)
    ):
        raise Misconfigured(
            f"ResourceLock: the resource is {resource!r}: give a text of 1 to"
            f" {NAME_LIMIT} characters, without NUL."
        )
    return resource


def _check_timeout(timeout: float | None) -> None:
    if timeout is None:
        return
    if type(timeout) not in {int, float} or not 0 <= timeout <= threading.TIMEOUT_MAX:
        raise Misconfigured(
            f"ResourceLock: the timeout is {timeout!r}: give seconds, or None."
        )
