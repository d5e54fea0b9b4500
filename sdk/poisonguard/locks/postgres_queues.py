"""The thread that has a process's places in the queues of Postgres."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

import psycopg

from poisonguard.errors import Away, GuardError, Misconfigured
from poisonguard.locks.lock_server import ANSWER_SECONDS, LockAttempt, LockGrant
from poisonguard.locks.postgres_connection import LockConnection, Ticket

log = logging.getLogger(__name__)

# An answer counts for so many looks, but for so many seconds at most.
TRUSTED_LOOKS, TRUSTED_SECONDS = 2, 2.0
# Looks of a process that neither has a ticket nor wants one.
IDLE_LOOKS = 30
CLOSED = "The session of Postgres has been closed."


class TicketQueues:
    """One session of Postgres: its tickets, and the thread that speaks to it.

    It ends once and for all, and all grants with it.
    """

    def __init__(self, conninfo: str, *, look_every: float) -> None:
        self.has_ended = False
        self._conninfo = conninfo
        self._look_every = look_every
        self._error: GuardError = Away(CLOSED)
        self._is_closing = False
        self._mutex = threading.Lock()
        self._commands: deque[Callable[[], None]] = deque()
        self._undecided: set[TicketAttempt] = set()
        self._ticketless: dict[str, deque[TicketAttempt]] = {}
        # Resources whose queue another transaction has locked.
        self._locked: deque[str] = deque()
        self._waiting: dict[str, dict[int, TicketAttempt]] = {}
        self._due: set[TicketAttempt] = set()
        self._tickets: set[Ticket] = set()  # those that have the lock
        self._answers: set[threading.Event] = set()
        self._connection: LockConnection | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)  # noqa: FBT003 - as the library has it
        self._thread = threading.Thread(
            target=self._run, name="poisonguard locks", daemon=True
        )
        _live.add(self)
        self._thread.start()

    # For any thread

    def attempt(self, resource: str) -> TicketAttempt:
        attempt = TicketAttempt(resource, self)
        with self._mutex:
            if self.has_ended:
                attempt.fail(self._error)
                return attempt
            self._undecided.add(attempt)
        self.submit(partial(self._take, attempt))
        return attempt

    def submit(self, command: Callable[[], None]) -> None:
        """Queue work for this process's thread of lock tickets in Postgres."""
        self._commands.append(command)
        with suppress(BlockingIOError, OSError):  # full: it is awake; closed: it ended
            self._wake_in.send(b"\0")

    def is_lost(self) -> bool:
        """Tell whether the session of a ticket has ended; ask Postgres if needed."""
        if self.has_ended:
            return True
        connection = self._connection
        if connection is not None:
            age = time.monotonic() - connection.answered_at
            if age <= min(TRUSTED_LOOKS * self._look_every, TRUSTED_SECONDS):
                return False
        return not self._do(self._ping)

    def release(self, ticket: Ticket) -> bool:
        """Give a lock's Postgres ticket back; return if it was alive until then."""
        was_alive: list[bool] = []
        self._do(lambda: was_alive.append(self._release(ticket)))
        return was_alive == [True]

    def leave(self, attempt: TicketAttempt) -> None:
        """Delete the ticket of an attempt at a lock, on the queues' thread."""
        self.submit(partial(self._leave, attempt))

    def close(self) -> None:
        """End the Postgres session of the queues, after what was submitted before."""
        self.submit(self._close)
        self._thread.join(ANSWER_SECONDS)
        self._end(Away(CLOSED))

    def leave_to_parent(self) -> None:
        """End the queues in a forked child; leave the session to its parent."""
        self._mutex = threading.Lock()
        self.has_ended = True
        if self._connection is not None:
            self._connection.leave_to_parent()

    def _do(self, command: Callable[[], object]) -> bool:
        """Have this process's lock thread do some work; tell if it did so in time.

        Without an answer in time, the queues and all their locks end.
        """
        is_done, answer = False, threading.Event()

        def do() -> None:
            nonlocal is_done
            command()
            is_done = True
            self._answers.discard(answer)
            answer.set()

        with self._mutex:
            if self.has_ended:
                return False
            self._answers.add(answer)
        self.submit(do)
        if not answer.wait(ANSWER_SECONDS):
            self._end(Away("Postgres does not answer."))
        return is_done

    def _end(self, error: GuardError) -> None:
        """End all grants and attempts of locks with this error.

        A thread other than the queues' own also cuts the connection to Postgres.
        """
        with self._mutex:
            if self.has_ended:
                return
            self.has_ended = True
            self._error = error
            attempts, answers = [*self._undecided], [*self._answers]
        if attempts or self._tickets:
            log.warning(
                "The session of %d locks and %d waits has ended: %s",
                len(self._tickets),
                len(attempts),
                error,
            )
        for attempt in attempts:
            attempt.fail(error)
        for answer in answers:
            answer.set()
        is_ours = threading.current_thread() is self._thread
        if self._connection is not None and not is_ours:
            self._connection.abort()

    # For the thread alone

    def _run(self) -> None:
        error: GuardError = Away(CLOSED)
        try:
            connection = LockConnection(self._conninfo, f"poisonguard_{uuid4().hex}")
            self._connection = connection
            connection.prepare(self._conninfo)
            self._work(connection)
        except GuardError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001 - told to all waiters
            kind = type(raised).__name__
            error = Away(f"The session of Postgres has ended: {kind}: {raised}")
        finally:
            self._end(error)
            if self._connection is not None:
                self._connection.close()
            _live.discard(self)
            self._wake_in.close()
            self._wake_out.close()

    def _work(self, connection: LockConnection) -> None:
        """On this process's lock thread, do submitted work, look after tickets.

        Go on until the end.
        """
        looked_at = time.monotonic()
        with selectors.DefaultSelector() as news:
            news.register(connection, selectors.EVENT_READ)
            news.register(self._wake_out, selectors.EVENT_READ)
            while not (self.has_ended or self._is_closing):
                # A call may also have come with the answer to a statement.
                if not (self._has_work or connection.has_calls):
                    next_look = looked_at + self._pause
                    news.select(max(0.0, next_look - time.monotonic()))
                self._do_what_is_new()
                if self._locked:
                    self._take_tickets(self._locked.popleft())
                if time.monotonic() >= looked_at + self._pause:
                    looked_at = time.monotonic()
                    connection.ping()
                    self._due.update(*map(dict.values, self._waiting.values()))
                self._look()

    @property
    def _has_work(self) -> bool:
        return bool(self._commands or self._due or self._locked)

    @property
    def _pause(self) -> float:
        """Return the seconds between looks at lock tickets; longer without any."""
        is_idle = not (self._tickets or self._undecided)
        return self._look_every * (IDLE_LOOKS if is_idle else 1)

    def _do_what_is_new(self) -> None:
        """Note which tickets Postgres calls; run the work submitted until now."""
        with suppress(BlockingIOError):
            self._wake_out.recv(4096)
        for resource in self._session.called_resources():
            self._call_first(resource)
        for _ in range(len(self._commands)):
            self._commands.popleft()()

    @property
    def _session(self) -> LockConnection:
        connection = self._connection
        assert connection is not None  # noqa: S101 - the thread begins with it
        return connection

    def _call_first(self, resource: str) -> None:
        """Have the next look check the first of our waiting tickets for a resource."""
        for attempt in self._waiting.get(resource, {}).values():
            self._due.add(attempt)
            return

    def _ping(self) -> None:
        self._session.ping()

    def _close(self) -> None:
        self._is_closing = True

    def _take(self, attempt: TicketAttempt) -> None:
        """Take an attempt's lock ticket in Postgres, after those that asked before."""
        queue = self._ticketless.setdefault(attempt.resource, deque())
        queue.append(attempt)
        if len(queue) == 1:
            self._take_tickets(attempt.resource)

    def _take_tickets(self, resource: str) -> None:
        """Take lock tickets for a resource's attempts; retry later while it is locked.

        A try takes a second then, so there is one in each turn, of one resource.
        """
        queue = self._ticketless[resource]
        while queue:
            if not self._has_taken(queue[0]):
                self._locked.append(resource)
                return
            queue.popleft()
        del self._ticketless[resource]

    def _has_taken(self, attempt: TicketAttempt) -> bool:
        """Draw a ticket, a place in a lock's queue, for an attempt that has none.

        Return False if the queue's row is locked by others: the attempt tries again.
        """
        if attempt.is_over:
            self._undecided.discard(attempt)
            return True
        try:
            ticket = self._session.take(attempt.resource)
        except psycopg.DataError as error:
            self._refuse(attempt, Misconfigured(f"PostgresLocks: no ticket: {error}"))
            return True
        except psycopg.errors.OutOfMemory as error:
            self._refuse(attempt, Away(f"Postgres has no room for a ticket: {error}"))
            return True
        if ticket is None:
            return False
        attempt.ticket = ticket
        self._waiting.setdefault(ticket.resource, {})[ticket.number] = attempt
        self._due.add(attempt)
        return True

    def _refuse(self, attempt: TicketAttempt, error: GuardError) -> None:
        self._undecided.discard(attempt)
        attempt.fail(error)

    def _leave(self, attempt: TicketAttempt) -> None:
        """Delete the lock ticket of an attempt that waits no longer."""
        self._undecided.discard(attempt)
        if attempt.ticket is not None and self._stop_waiting(attempt.ticket):
            self._release(attempt.ticket)

    def _look(self) -> None:
        """Grant the lock to each due ticket that is first in its queue.

        Where a dead ticket is next before one, delete the dead one and look again.
        """
        due = {each.ticket: each for each in self._due if each.ticket is not None}
        self._due.clear()
        while due:
            again, dead = dict[Ticket, TicketAttempt](), set[Ticket]()
            for each in self._session.look(due):
                attempt = due[each.of]
                if each.earlier is None:
                    self._grant(attempt, each.of)
                elif each.is_dead:
                    again[each.of] = attempt
                    dead.add(each.earlier)
                else:
                    attempt.note_place()
            if dead and not self._session.forget(dead):
                self._due.update(again.values())
                return
            due = again

    def _grant(self, attempt: TicketAttempt, ticket: Ticket) -> None:
        if not self._stop_waiting(ticket):
            return
        self._undecided.discard(attempt)
        self._tickets.add(ticket)
        if not attempt.grant(TicketGrant(ticket, self)):
            self._release(ticket)

    def _stop_waiting(self, ticket: Ticket) -> bool:
        """Remove a lock ticket from those that wait; False if it did not wait."""
        queue = self._waiting.get(ticket.resource, {})
        attempt = queue.pop(ticket.number, None)
        if attempt is not None:
            self._due.discard(attempt)
        if not queue:
            self._waiting.pop(ticket.resource, None)
        return attempt is not None

    def _release(self, ticket: Ticket) -> bool:
        """Delete a lock's ticket, and call the next, which may be ours."""
        was_alive = self._session.release(ticket)
        self._tickets.discard(ticket)
        self._call_first(ticket.resource)
        return was_alive


# All whose sessions may live, also after the end of their `PostgresLocks`.
_live: set[TicketQueues] = set()
# Never collected: psycopg would warn of connections that were not closed.
_of_parents: list[TicketQueues] = []


def _leave_all_to_parent() -> None:
    for queues in _live:
        queues.leave_to_parent()
    _of_parents.extend(_live)
    _live.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)


class TicketAttempt(LockAttempt):
    """An `acquire` with a place in the queue, once it has its ticket."""

    def __init__(self, resource: str, queues: TicketQueues) -> None:
        super().__init__(resource)
        self.ticket: Ticket | None = None
        self._queues = queues

    def _leave_queue(self) -> None:
        self._queues.leave(self)


class TicketGrant(LockGrant):
    """The lowest living ticket of its resource."""

    def __init__(self, ticket: Ticket, queues: TicketQueues) -> None:
        super().__init__(ticket.resource, ticket.number)
        self._ticket = ticket
        self._queues = queues

    def _is_lost(self) -> bool:
        return self._queues.is_lost()

    def _release(self) -> bool:
        return self._queues.release(self._ticket)
