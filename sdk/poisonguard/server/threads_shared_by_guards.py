"""A process's connection to Poisonweb: guards with equal urls and keys share it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from poisonguard.errors import StartTimeout
from poisonguard.server.http_client import Client
from poisonguard.server.report_sending import Reporter
from poisonguard.server.skip_stream import SkipStream
from poisonguard.server.spool import Spool
from poisonguard.skipping.skip_list import SkipList

log = logging.getLogger(__name__)

# Seconds for which an ending interpreter may still send reports.
EXIT_TIMEOUT = 2.0
_TICK = 1.0

_Key = tuple[tuple[str, ...], str | Callable[[], str], Path | None]


class Connection:
    """The incoming skip lists and the outgoing reports of one process.

    A thread that never waits for the network calls `on_tick` about once a second:
    guards hand over their counts and heartbeats there. In a forked child the
    connection starts again by itself, with the same skip lists in force.
    """

    def __init__(
        self,
        urls: Sequence[str],
        api_key: str | Callable[[], str],
        *,
        spool: Path | None = None,
    ) -> None:
        self.client = Client(urls, api_key)
        self.reporter = Reporter(
            self.client, spool=None if spool is None else Spool(spool)
        )
        self.on_tick: list[Callable[[], None]] = []
        self._skip_stream = SkipStream(self.client, on_return=self.reporter.wake)
        self._started = False
        self._key: _Key | None = None
        self._users = 0
        self._reset()
        _shared.all.add(self)

    def _reset(self) -> None:
        """Forget the Poisonweb connection's tick thread, and that it was closed."""
        self._closing = threading.Event()
        self._ticking: threading.Thread | None = None

    @classmethod
    def shared(
        cls,
        urls: Sequence[str],
        api_key: str | Callable[[], str],
        *,
        spool: Path | None = None,
    ) -> Connection:
        """Return the process's connection to a Poisonweb server.

        Guards with equal urls, API key and spool share it; each user closes it once.
        """
        key = tuple(urls), api_key, spool and spool.resolve()
        with _shared.lock:
            connection = _shared.by_key.get(key)
            if connection is None:
                connection = _shared.by_key[key] = cls(urls, api_key, spool=spool)
                connection._key = key
            connection._users += 1
        return connection

    def skip_list(
        self,
        *,
        topic: str,
        consumer_group: str,
        handler_version: str | None,
        client_name: str = "",
    ) -> SkipList:
        """Create and return a skip list that is followed from now on.

        `start` or the running stream loads it.
        """
        skip_list = SkipList(
            topic=topic,
            consumer_group=consumer_group,
            handler_version=handler_version,
            tell_applied=partial(self._count_applied, consumer_group, client_name),
        )
        self._skip_stream.join(skip_list)
        return skip_list

    def leave(self, skip_list: SkipList) -> None:
        """Stop following a guard's skip list over this connection to Poisonweb."""
        self._skip_stream.leave(skip_list)

    def start(self, timeout: float) -> None:
        """Start the connection's threads; wait until every skip list is loaded.

        Raise StartTimeout after `timeout` seconds, and Refused if Poisonweb refuses us.
        """
        self._start_threads()
        if not self._skip_stream.until_loaded(timeout):
            why = self._skip_stream.trouble or "the server has not answered"
            raise StartTimeout(f"No skip list after {timeout:g} s: {why}")
        if self._skip_stream.refused is not None:
            raise self._skip_stream.refused

    def close(self, timeout: float) -> None:
        """Send waiting reports; end the Poisonweb connection after its last user.

        Both take `timeout` seconds at most.
        """
        deadline = time.monotonic() + timeout
        with _shared.lock:
            self._users -= 1
            others = self._users > 0
            if not others and self._key is not None:
                _shared.by_key.pop(self._key, None)
        if others:
            self.reporter.flush(timeout)
        else:
            self._end(deadline)

    @property
    def warnings(self) -> list[str]:
        """List problems of the connection to Poisonweb, for `guard.health()`.

        They have remedies, and are of skips, the clock and reports.
        """
        problems = (
            [f"skips: {self._skip_stream.trouble}"] if self._skip_stream.trouble else []
        )
        skew = self.client.skew_warning
        return [*problems, *([skew] if skew else []), *self.reporter.warnings]

    def _start_threads(self) -> None:
        """Start the threads of the stream, of the reports and of the tick."""
        self._started = True
        self._skip_stream.start()
        self.reporter.start()
        if self._ticking is None:
            self._ticking = threading.Thread(
                target=self._tick, name="poisonguard-tick", daemon=True
            )
            self._ticking.start()

    def _end(self, deadline: float) -> None:
        """Send waiting reports to Poisonweb, and stop the connection's threads.

        That lasts until a monotonic deadline at most.
        """
        self._started = False
        self._closing.set()
        self._skip_stream.stop()
        self.reporter.close(max(0.0, deadline - time.monotonic()))
        self._skip_stream.join_thread(max(0.0, deadline - time.monotonic()))
        if self._ticking is not None:
            self._ticking.join(max(0.0, deadline - time.monotonic()))
        self.client.close()

    def _reset_after_fork(self) -> None:
        """Start the connection to Poisonweb again in a forked child.

        Its threads start only if the parent's were started.
        """
        self._reset()
        self._skip_stream.reset_after_fork()
        self.reporter.reset_after_fork()
        if self._started:
            self._start_threads()

    def _count_applied(
        self, consumer_group: str, client_name: str, skip: int, times: int
    ) -> None:
        """Count for Poisonweb that a guard applied a skip."""
        self.reporter.count_applied(
            skip=skip,
            consumer_group=consumer_group,
            client_name=client_name,
            times=times,
        )

    def _tick(self) -> None:
        """Expire due skips, and call `on_tick` once a second, until closed."""
        closing, ticked = self._closing, time.monotonic()
        while not closing.wait(self._until_next_expiry()):
            now = self.client.now()
            for skip_list in self._skip_stream.lists:
                skip_list.expire(now)
            if time.monotonic() - ticked >= _TICK:
                ticked = time.monotonic()
                self._call_all()

    def _call_all(self) -> None:
        """Call each function of `on_tick`; log what the functions raise."""
        for call in list(self.on_tick):
            try:
                call()
            except Exception:
                log.exception("a guard could not report its state")

    def _until_next_expiry(self) -> float:
        """Return the seconds to wait until a skip expires, at most those of a tick."""
        # The clock may be set meanwhile: no longer than a tick.
        expiries = [
            one.next_expiry for one in self._skip_stream.lists if one.next_expiry
        ]
        if not expiries:
            return _TICK
        remaining = (min(expiries) - self.client.now()).total_seconds()
        return min(_TICK, max(0.0, remaining))


class _Shared:
    """The connections of this process: the shared ones by key, and all of them."""

    def __init__(self) -> None:
        self.by_key: dict[_Key, Connection] = {}
        self.all: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.reset_lock()

    def reset_lock(self) -> None:
        """Take a new lock for the shared connections in a forked child."""
        self.lock = threading.Lock()


_shared = _Shared()


def _reset_all_after_fork() -> None:
    """Start all connections to Poisonweb again in a forked child."""
    _shared.reset_lock()
    for connection in list(_shared.all):
        connection._reset_after_fork()  # noqa: SLF001 # ours


def _flush_all() -> None:
    """End all connections to Poisonweb at the interpreter's end, in EXIT_TIMEOUT."""
    deadline = time.monotonic() + EXIT_TIMEOUT
    for connection in list(_shared.all):
        connection._end(deadline)  # noqa: SLF001 # ours


os.register_at_fork(after_in_child=_reset_all_after_fork)
atexit.register(_flush_all)
