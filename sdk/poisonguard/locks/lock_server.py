"""What `ResourceLock` needs of a server of locks."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from typing import Protocol
from weakref import WeakSet

from poisonguard.errors import GuardError

# A shorter time-out still waits for the server's first answer, up to so many seconds.
FIRST_ANSWER_SECONDS = 1.0
# A server that has not answered after so many seconds counts as gone.
ANSWER_SECONDS = 5.0


class LockGrant(ABC):
    """A lock that was acquired; any thread may use it.

    `fence` is higher than that of every earlier grant of the resource: a store that
    refuses a lower fence than it has seen is safe from a holder that lost its lock.
    """

    def __init__(self, resource: str, fence: int) -> None:
        self.resource = resource
        self.fence = fence
        self._pid = os.getpid()
        self._release_mutex = threading.Lock()
        self._was_ours: bool | None = None  # None until it is released

    @property
    def lost(self) -> bool:
        """Tell whether another holder of the lock is possible; once true, it stays."""
        return self._was_ours is not None or self._is_lost()

    def release(self) -> bool:
        """Give the lock back; return whether it was ours until then."""
        if os.getpid() != self._pid:
            return False  # it is the parent's, whose thread may have had the mutex
        with self._release_mutex:
            if self._was_ours is None:
                self._was_ours = self._release()
            return self._was_ours

    @abstractmethod
    def _is_lost(self) -> bool:
        """Tell whether the lock was lost before its release."""

    @abstractmethod
    def _release(self) -> bool:
        """Release the lock at the server; return whether it was ours until then."""


class LockAttempt(ABC):
    """One call of `acquire`: its thread waits, and the server's thread decides."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self._mutex = threading.Lock()
        self._grant: LockGrant | None = None
        self._error: GuardError | None = None
        self._is_over = False
        self._has_place = threading.Event()
        self._is_decided = threading.Event()

    @property
    def is_over(self) -> bool:
        """Tell whether the caller waits no longer for the lock."""
        return self._is_over

    def wait(self, timeout: float | None) -> LockGrant | None:
        """Wait for the lock; return its grant, or None after `timeout` seconds.

        Raises the error with which the wait failed.
        """
        try:
            self._wait_for_decision(timeout)
        except BaseException:
            self.withdraw()
            raise
        with self._mutex:
            self._is_over = True
            grant, error = self._grant, self._error
        if error is not None:
            raise type(error)(str(error)) from error  # its own, in each thread
        if grant is None:
            self._leave_queue()
        return grant

    def withdraw(self) -> None:
        """Give up the wait for a lock, and the lock if it was granted."""
        with self._mutex:
            self._is_over = True
            grant = self._grant
        if grant is not None:
            grant.release()
        else:
            self._leave_queue()

    def grant(self, grant: LockGrant) -> bool:
        """Hand the lock to the caller; False if it waits no longer."""
        with self._mutex:
            if self._is_over:
                return False
            self._grant = grant
        self._decide()
        return True

    def fail(self, error: GuardError) -> None:
        """End the wait of a lock's `acquire` with an error, unless it was granted."""
        with self._mutex:
            if self._grant is None and self._error is None:
                self._error = error
        self._decide()

    def note_place(self) -> None:
        """Note that others wait first for the lock: now the time-out counts."""
        self._has_place.set()

    @abstractmethod
    def _leave_queue(self) -> None:
        """Let the server forget this wait's place in a lock's queue, without delay."""

    def _decide(self) -> None:
        self._is_decided.set()
        self._has_place.set()

    def _wait_for_decision(self, timeout: float | None) -> None:
        if timeout is None:
            self._is_decided.wait()
            return
        deadline = time.monotonic() + timeout
        self._has_place.wait(max(timeout, FIRST_ANSWER_SECONDS))
        self._is_decided.wait(max(0.0, deadline - time.monotonic()))


class LockSession(Protocol):
    """A connection to a server of locks, which ends once and for all."""

    def close(self) -> None:
        """End the session of locks, and all its grants and attempts."""


class LockServer(ABC):
    """One process's connection to a server of locks, for all its threads and locks."""

    def __init__(self) -> None:
        self._users: set[object] = set()
        self._mutex = threading.Lock()
        _servers.add(self)

    def enter(self, user: object) -> None:
        """Note a user of the connection to the lock server."""
        with self._mutex:
            self._users.add(user)

    def leave(self, user: object) -> None:
        """Forget a user of the lock server's connection; the last one closes it."""
        with self._mutex:
            self._users.discard(user)
            # Who enters from now on gets a session of its own.
            session = None if self._users else self._detach()
        if session is not None:
            session.close()

    def close(self) -> None:
        """Close the connection for locks; the next attempt opens another one."""
        with self._mutex:
            session = self._detach()
        if session is not None:
            session.close()

    def reset_after_fork(self) -> None:
        """Begin without the parent's session of locks, in a forked child."""
        self._mutex = threading.Lock()
        self._detach()

    @abstractmethod
    def attempt(self, resource: str) -> LockAttempt:
        """Join the queue for a resource's lock; return the attempt to wait on."""

    @abstractmethod
    def _detach(self) -> LockSession | None:
        """Forget and return the session of locks, if any; the caller has the mutex."""


_servers: WeakSet[LockServer] = WeakSet()


def _reset_all_after_fork() -> None:
    for server in list(_servers):
        server.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
