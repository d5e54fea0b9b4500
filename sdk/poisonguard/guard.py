"""The guard of a handler: the class that an application creates and calls."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

from poisonguard import settings
from poisonguard.dedupe.once import Window
from poisonguard.errors import Misconfigured, Stopping
from poisonguard.handling.circuit_breaker import BreakerPolicy
from poisonguard.handling.event_loop_steps import Tasks
from poisonguard.handling.guard_components import GuardComponents
from poisonguard.handling.guard_lifecycle import RunningGuard, utc_now
from poisonguard.handling.handled_counts_and_durations import Slot
from poisonguard.handling.healthy_path import (
    AsyncHandler,
    Handle,
    HandleAsync,
    Handler,
    healthy_path,
    healthy_path_async,
)
from poisonguard.handling.slow_path import MessageFlow
from poisonguard.handling.step_types_and_thread_runner import play
from poisonguard.journal.in_flight_journal import Journal
from poisonguard.outcome import Outcome
from poisonguard.policy import RetryPolicy
from poisonguard.readers import Reader
from poisonguard.readers.plain import PlainReader
from poisonguard.skipping.skip_list import SkipList
from poisonguard.version import VERSION

CLOSE_TIMEOUT = 5.0
_DEFAULT_POLICY = RetryPolicy()
_DEFAULT_BREAKER = BreakerPolicy()


class Guard:
    """Keep a consumer going, whatever a message does to its handler.

    with Guard(topic="orders", consumer_group="billing") as guard:
        for message in client:
            outcome = guard.handle(message, handler)

    Entering the guard loads the skip list, or raises. Settings are keyword arguments,
    see `poisonguard.settings.Options`, or POISONGUARD_* in the environment. Any number
    of threads and tasks may share a guard.

    The guard calls `keep_alive(message)`, maybe on another thread, while a message
    waits for its retry or for Poisonweb. `redeliver(message, seconds)` returns it to a
    broker that delivers it again after that time: then no retry waits here, and the
    caller need do nothing on `RELEASE`. On a topic that replays, the guard keeps a
    released message and retries it; once that is done it calls
    `settle(message, outcome)`, maybe on another thread. With `dedupe`, a window, it
    skips copies of handled messages. `breaker=None` and `journal=None` disable these.
    """

    handle: Handle
    handle_async: HandleAsync

    def __init__(  # noqa: PLR0913 - the signature is the documentation
        self,
        *,
        reader: Reader | None = None,
        policy: RetryPolicy = _DEFAULT_POLICY,
        breaker: BreakerPolicy | None = _DEFAULT_BREAKER,
        journal: Journal | Path | str | None = "auto",
        keep_alive: Callable[[Any], object] | None = None,
        redeliver: Callable[[Any, float], object] | None = None,
        settle: Callable[[Any, Outcome], object] | None = None,
        dedupe: Window | None = None,
        clock: Callable[[], datetime] | None = None,
        **options: Unpack[settings.Options],
    ) -> None:
        self.settings = settings.load(options, os.environ)
        calls = {"keep_alive": keep_alive, "redeliver": redeliver, "settle": settle}
        for name, call in calls.items():
            if inspect.iscoroutinefunction(call):
                raise Misconfigured(f"{name} is a coroutine: give a plain function.")
        if dedupe is not None and not isinstance(dedupe, Window):
            raise Misconfigured(
                f"dedupe is {dedupe!r}: give a MemoryWindow() or a PostgresWindow(...)."
            )
        self._journal = (
            journal
            if isinstance(journal, Journal)
            else Journal(journal, clock=clock or utc_now)
        )
        self._new_running = partial(
            RunningGuard,
            settings=self.settings,
            reader=reader or PlainReader(),
            policy=policy,
            breaker=breaker,
            journal=self._journal,
            keep_alive=keep_alive,
            redeliver=redeliver,
            settle=settle,
            dedupe=dedupe,
            clock=clock,
        )
        self._starting = threading.RLock()
        self._running: RunningGuard | None = None
        self._is_stopping = False
        self.handle = self._start_and_handle
        self.handle_async = self._start_and_handle_async

    def start(self) -> None:
        """Load the skip list; no message runs before that.

        Raise StartTimeout when that takes too long, and Refused when Poisonweb refuses
        the API key. The first message starts a guard that was not started.
        """
        self._open().listen()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Close the guard: wait for the messages in flight, and flush reports.

        Later messages are released.
        """
        with self._starting:
            if self._running is not None:
                self._running.close(timeout=timeout)

    def stopping(self) -> None:
        """Announce that this process will stop: no message is charged with its end.

        The guard hears SIGTERM by itself where it can; `health()` warns where it
        cannot. Waits are cut short; messages are still handled until `close`. May be
        called repeatedly, and by a signal handler: it takes no lock and never waits.
        """
        self._is_stopping = True
        running = self._running
        if running is not None:
            running.stopping()

    def health(self) -> dict[str, object]:
        """Return the guard's state: age of the skip list, spool, breaker and more."""
        with self._starting:
            if self._running is None:
                return {"state": "not started", "version": VERSION}
            return self._running.health()

    @property
    def skips(self) -> SkipList:
        """Return the guard's skip list; raise Stopping before the start."""
        if self._running is None:
            raise Stopping("The guard has no skip list yet: start it.")
        return self._running.components.skips

    # As a context manager

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        running = await asyncio.to_thread(self._open)
        running.listen()  # only the main thread can set signal handlers
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    # Around a handler

    @overload
    def __call__(  # type: ignore[overload-overlap] # a coroutine is an object, too
        self,
        handler: Callable[[Any], Coroutine[Any, Any, object]],
        /,
        *,
        reraise: bool = ...,
    ) -> Callable[[Any], Coroutine[Any, Any, Outcome]]: ...
    @overload
    def __call__(
        self, handler: Handler, /, *, reraise: bool = ...
    ) -> Callable[[Any], Outcome]: ...
    def __call__(self, handler: Any, /, *, reraise: bool = False) -> Any:
        """Wrap a handler, `async def` or not, in a function that returns the outcome.

        With `reraise` the handler's exception is raised again once the message is
        poisoned or released: for clients that expect exceptions.
        """
        if _is_async(handler):
            return self._wrapped_async(handler, reraise=reraise)
        return self._wrapped(handler, reraise=reraise)

    wrap = __call__  # reads better as a decorator

    def _wrapped(self, handler: Handler, *, reraise: bool) -> Callable[[Any], Outcome]:
        """Wrap a handler that is no coroutine function in the guard; see `__call__`."""

        @wraps(handler)
        def guarded(message: Any) -> Outcome:
            if not reraise:
                return self.handle(message, handler)
            attempt = _Attempt(handler)
            return attempt.raise_unless_handled(self.handle(message, attempt.run))

        return guarded

    def _wrapped_async(
        self, handler: AsyncHandler, *, reraise: bool
    ) -> Callable[[Any], Coroutine[Any, Any, Outcome]]:
        """Wrap an async handler in the guard; see `__call__`."""

        @wraps(handler)
        async def guarded(message: Any) -> Outcome:
            if not reraise:
                return await self.handle_async(message, handler)
            attempt = _Attempt(handler)
            return attempt.raise_unless_handled(
                await self.handle_async(message, attempt.run_async)
            )

        return guarded

    # The first message

    def _start_and_handle(self, message: Any, handler: Handler) -> Outcome:
        """Start the guard with its first message, and handle the message."""
        self.start()
        return self.handle(message, handler)

    async def _start_and_handle_async(
        self, message: Any, handler: AsyncHandler
    ) -> Outcome:
        """Start the guard with its first message, and handle it, on an event loop."""
        await self.__aenter__()
        return await self.handle_async(message, handler)

    def _open(self) -> RunningGuard:
        """Load the skip list on the first call, and set the guard's `handle` for good.

        Return the running guard.
        """
        with self._starting:
            if self._running is None:
                running = self._new_running()
                running.open()
                components, handling = running.components, running.handling
                handle = healthy_path(components, Threads(components, handling))
                handle_async = healthy_path_async(
                    components, Tasks(components, handling)
                )
                if running.once is not None:
                    handle = running.once.around(handle)
                    handle_async = running.once.around_async(handle_async)
                self.handle, self.handle_async = handle, handle_async
                self._running = running
                if self._is_stopping:  # `stopping` was called during the start
                    running.stopping()
            return self._running


class Threads:
    """The slow path on the caller's thread."""

    def __init__(self, components: GuardComponents, handling: MessageFlow) -> None:
        self._components = components
        self._handling = handling

    def handle(self, message: object, handler: Handler) -> Outcome:
        """On the slow path, retry due released messages, then decide the new one.

        Return the new message's outcome.
        """
        while (entry := self._handling.take_retry()) is not None:
            again = self._handling.retry_steps(entry)
            play(again, entry.handler, entry.message, self._components.leaving)
        steps = self._handling.steps(message, handler)
        return play(steps, handler, message, self._components.leaving)

    def after(
        self, message: object, handler: Handler, slot: Slot, error: BaseException
    ) -> Outcome:
        """Return the outcome of a message whose handler raised on the healthy path."""
        steps = self._handling.failure_steps(message, handler, slot, error)
        return play(steps, handler, message, self._components.leaving)


class _Attempt:
    """Run a handler and remember its last exception."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler
        self._error: Exception | None = None

    def run(self, message: Any) -> None:
        """Run a message's handler; remember and raise its exception."""
        try:
            self._handler(message)
        except Exception as error:
            self._error = error
            raise

    async def run_async(self, message: Any) -> None:
        """Await a message's handler; remember and raise its exception."""
        try:
            await self._handler(message)
        except Exception as error:
            self._error = error
            raise

    def raise_unless_handled(self, outcome: Outcome) -> Outcome:
        """Return a message's outcome, or raise its handler's last exception.

        That is raised unless the message was handled.
        """
        if self._error is not None and outcome is not Outcome.HANDLED:
            raise self._error
        return outcome


def _is_async(handler: object) -> bool:
    """Tell whether a handler is a coroutine function, or an object with one."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object may have one
    return any(map(inspect.iscoroutinefunction, (handler, call)))
