"""The link of a process to Poisonweb: one for all guards with the same urls and key."""

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
from poisonguard.server.client import Client
from poisonguard.server.reporter import Reporter
from poisonguard.server.skip_stream import Feed
from poisonguard.server.spool import Spool
from poisonguard.skipping.skip_list import SkipList

log = logging.getLogger(__name__)

# How long an interpreter that ends may take to tell the rest.
EXIT_TIMEOUT = 2.0
_TICK = 1.0

_Key = tuple[tuple[str, ...], str | Callable[[], str], Path | None]


class Link:
    """The skip lists that come in and the reports that go out.

    `on_tick` is called about once a second, by a thread that never waits for the
    network: where guards hand over what they counted and say how they are. After a
    fork the child's link begins anew by itself, with the same skip lists in force.
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
        self._feed = Feed(self.client, on_return=self.reporter.wake)
        self._started = False
        self._key: _Key | None = None
        self._users = 0
        self._begin()
        _shared.all.add(self)

    def _begin(self) -> None:
        self._closing = threading.Event()
        self._ticking: threading.Thread | None = None

    @classmethod
    def shared(
        cls,
        urls: Sequence[str],
        api_key: str | Callable[[], str],
        *,
        spool: Path | None = None,
    ) -> Link:
        """Give the process's link for these; each user closes it once."""
        key = tuple(urls), api_key, spool and spool.resolve()
        with _shared.lock:
            link = _shared.links.get(key)
            if link is None:
                link = _shared.links[key] = cls(urls, api_key, spool=spool)
                link._key = key
            link._users += 1
        return link

    def skip_list(
        self,
        *,
        topic: str,
        consumer_group: str,
        handler_version: str | None,
        client_name: str = "",
    ) -> SkipList:
        """Join the one stream; the list is loaded by `start`, or soon if started."""
        skip_list = SkipList(
            topic=topic,
            consumer_group=consumer_group,
            handler_version=handler_version,
            tell_applied=partial(self._applied, consumer_group, client_name),
        )
        self._feed.join(skip_list)
        return skip_list

    def leave(self, skip_list: SkipList) -> None:
        """Follow this list no more."""
        self._feed.leave(skip_list)

    def start(self, timeout: float) -> None:
        """Load every list; raises StartTimeout, or Refused as soon as it is."""
        self._run()
        if not self._feed.until_loaded(timeout):
            why = self._feed.trouble or "the server has not answered"
            raise StartTimeout(f"No skip list after {timeout:g} s: {why}")
        if self._feed.refused is not None:
            raise self._feed.refused

    def close(self, timeout: float) -> None:
        """Flush, and end with the last user; both within the time."""
        deadline = time.monotonic() + timeout
        with _shared.lock:
            self._users -= 1
            others = self._users > 0
            if not others and self._key is not None:
                _shared.links.pop(self._key, None)
        if others:
            self.reporter.flush(timeout)
        else:
            self._end(deadline)

    @property
    def warnings(self) -> list[str]:
        """What a person should know, and what to do; for `guard.health()`."""
        told = [f"skips: {self._feed.trouble}"] if self._feed.trouble else []
        skew = self.client.skew_warning
        return [*told, *([skew] if skew else []), *self.reporter.warnings]

    def _run(self) -> None:
        self._started = True
        self._feed.start()
        self.reporter.start()
        if self._ticking is None:
            self._ticking = threading.Thread(
                target=self._tick, name="poisonguard-tick", daemon=True
            )
            self._ticking.start()

    def _end(self, deadline: float) -> None:
        self._started = False
        self._closing.set()
        self._feed.stop()
        self.reporter.close(max(0.0, deadline - time.monotonic()))
        self._feed.join_thread(max(0.0, deadline - time.monotonic()))
        if self._ticking is not None:
            self._ticking.join(max(0.0, deadline - time.monotonic()))
        self.client.close()

    def _remake(self) -> None:
        self._begin()
        self._feed.remake()
        self.reporter.remake()
        if self._started:
            self._run()

    def _applied(
        self, consumer_group: str, client_name: str, skip: int, times: int
    ) -> None:
        self.reporter.applied.count(
            skip=skip,
            consumer_group=consumer_group,
            client_name=client_name,
            times=times,
        )

    def _tick(self) -> None:
        closing, ticked = self._closing, time.monotonic()
        while not closing.wait(self._until_next_expiry()):
            now = self.client.now()
            for skip_list in self._feed.lists:
                skip_list.expire(now)
            if time.monotonic() - ticked >= _TICK:
                ticked = time.monotonic()
                self._call_all()

    def _call_all(self) -> None:
        for call in list(self.on_tick):
            try:
                call()
            except Exception:
                log.exception("a guard could not tell how it is")

    def _until_next_expiry(self) -> float:
        # The clock may be set meanwhile: no longer than a tick.
        expiries = [one.next_expiry for one in self._feed.lists if one.next_expiry]
        if not expiries:
            return _TICK
        left = (min(expiries) - self.client.now()).total_seconds()
        return min(_TICK, max(0.0, left))


class _Shared:
    """The links of this process: those that are shared by their key, and all."""

    def __init__(self) -> None:
        self.links: dict[_Key, Link] = {}
        self.all: weakref.WeakSet[Link] = weakref.WeakSet()
        self.reset_lock()

    def reset_lock(self) -> None:
        self.lock = threading.Lock()


_shared = _Shared()


def _remake_all() -> None:
    _shared.reset_lock()
    for link in list(_shared.all):
        link._remake()  # noqa: SLF001 # ours


def _flush_all() -> None:
    deadline = time.monotonic() + EXIT_TIMEOUT
    for link in list(_shared.all):
        link._end(deadline)  # noqa: SLF001 # ours


os.register_at_fork(after_in_child=_remake_all)
atexit.register(_flush_all)
