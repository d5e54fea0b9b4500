"""A shared list of poison in a topic of the consumer's own AMPS server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from threading import Event, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Self

import AMPS

from poisonguard.amps.poison_list_connection import (
    MonitorServers,
    chooser_of,
    monitor_client,
)
from poisonguard.errors import Misconfigured, StartTimeout, Stopping
from poisonguard.outcome import Outcome
from poisonguard.processes.signal_safe_event import end_process
from poisonguard.readers.amps import refuse_borrowed, text_of

if TYPE_CHECKING:
    from poisonguard.guard import Guard

log = logging.getLogger(__name__)

POISON_TOPIC = "ADMIN_PoisonMessages"
WHY_LIMIT = 10_000

FLUSH = 5.0  # seconds
RECONNECT_WITHIN = 2.0  # seconds between tries of the monitor, at the most
LOGON = 5.0


class MisterYuck:
    """Wrap a handler: skip known poison, and announce new poison to all consumers.

    The list is a SOW topic of the client's own AMPS server, with the key `/bookmark`. A
    client of its own, the monitor, reads it and reconnects by itself. `servers` are the
    monitor's urls or server chooser; without them it follows the chooser of an
    `HAClient`, or stays with the one server of a plain client. `authenticator` logs it
    on; without one, the authenticator of the client's chooser does. With a `heartbeat`,
    in seconds, it also leaves a server that falls silent.

    Raise `StartTimeout` when the list is not loaded in time: without it no message may
    be handled. The handler's exception is raised again once the topic has the message;
    an `HAClient` discards poison, so that it is never delivered again.

    With a started `guard`, whose reader is an `AmpsReader`, failures are retried by its
    policy, messages that kill the process are found, and Poisonweb stores poison. What
    the guard releases is neither announced nor discarded.
    """

    def __init__(  # noqa: PLR0913 - each a setting of its own
        self,
        client: Any,
        handler: Callable[[Any], object],
        *,
        topic: str = POISON_TOPIC,
        timeout: float = 30.0,
        servers: Any = None,
        authenticator: Any = None,
        heartbeat: int | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._discard = getattr(client, "discard", None)
        self._handler = handler
        self._guard = guard
        self._topic = topic
        self._why: dict[str, str] = {}  # by bookmark
        self._unpublished: set[str] = (
            set()
        )  # ours, while the topic has not confirmed them
        self._loaded = Event()
        self._closed = False
        self.skipped = 0
        self._monitor = monitor_client(
            MonitorServers(
                chooser_of(client, servers), authenticator=authenticator, topic=topic
            ),
            timeout,
        )
        self._monitor.set_exception_listener(self._note_error)
        if heartbeat is not None:
            self._monitor.set_heartbeat(heartbeat)
        try:
            self._load(timeout)
        except BaseException:
            self.close()
            raise

    def _load(self, timeout: float) -> None:
        """Connect the AMPS poison list's monitor and read the list.

        Raise StartTimeout without it.
        """
        deadline = time.monotonic() + timeout
        try:
            self._monitor.connect_and_logon()
            self._monitor.set_reconnect_delay_strategy(
                AMPS.ExponentialDelayStrategy(
                    maximum_delay=int(RECONNECT_WITHIN * 1000)
                )
            )
            self._monitor.sow_and_subscribe(
                self._apply_record, self._topic, timeout=int(timeout * 1000)
            )
            self._monitor.set_timeout(int(min(timeout, LOGON) * 1000))
        except AMPS.AMPSException as reason:
            raise StartTimeout(f"{self._topic} cannot be read: {reason}") from reason
        if not self._loaded.wait(max(0.0, deadline - time.monotonic())):
            raise StartTimeout(
                f"{self._topic} was not read within {timeout:g} s: is it a SOW topic"
                " of this server?"
            )

    def __call__(self, message: Any) -> None:
        if self._closed:
            raise Stopping
        bookmark = _bookmark_of(message)
        if bookmark in self._why:
            self.skipped += 1
            log.info("skipped %.300r: %.300r", bookmark, self._why[bookmark])
            self._settle(message, bookmark)
        elif self._guard is not None:
            self._handle_guarded(message, bookmark, self._guard)
        else:
            self._handle(message, bookmark)

    def _handle(self, message: Any, bookmark: str) -> None:
        """Run an AMPS message's handler; on an error announce the poison, and raise."""
        try:
            self._handler(message)
        except (Exception, SystemExit) as error:
            # KeyboardInterrupt and the like are no failures of a message.
            self._poison(bookmark, _describe_error(error))
            self._settle(message, bookmark)
            is_main = current_thread() is main_thread()
            if isinstance(error, SystemExit) and not is_main:
                end_process(error.code)
            raise

    def _handle_guarded(self, message: Any, bookmark: str, guard: Guard) -> None:
        """Have the guard handle an AMPS message; announce it if it is poison now.

        Settle it unless the guard releases it; raise what the handler raised.
        """
        errors: list[Exception] = []

        def attempt(message: Any) -> None:
            try:
                self._handler(message)
            except Exception as error:
                errors.append(error)
                raise

        outcome = guard.handle(message, attempt)
        if outcome is Outcome.HANDLED:
            return
        if outcome is Outcome.SKIPPED:
            self.skipped += 1
        if outcome is Outcome.POISONED:
            skip = guard.skips.bookmarks.get(bookmark)
            reason = skip.reason if skip else "poison, which Poisonweb has"
            self._poison(bookmark, _describe_error(errors[-1]) if errors else reason)
        if outcome is not Outcome.RELEASE:
            self._settle(message, bookmark)
        if errors:
            raise errors[-1]

    def _poison(self, bookmark: str, why: str) -> None:
        """Skip a poison message from here on; announce it on the AMPS list.

        Never raise.
        """
        if not bookmark:
            log.error("A message without bookmark cannot be skipped later: %.300r", why)
            return
        self._unpublished.add(bookmark)
        self._why[bookmark] = why
        try:
            self._publish_record(bookmark)
            self._monitor.publish_flush(int(FLUSH * 1000))
            self._unpublished.discard(bookmark)
        except AMPS.AMPSException:
            log.exception("%s is poison, which the others are told later", bookmark)

    def _publish_record(self, bookmark: str) -> None:
        """Publish to the poison list's AMPS topic why a message is poison."""
        record = {"bookmark": bookmark, "why": self._why[bookmark]}
        self._monitor.publish(self._topic, json.dumps(record))

    def _settle(self, message: Any, bookmark: str) -> None:
        """Discard a message from the AMPS client's store.

        For a poison message, do so only once the poison list has its record.
        """
        # Unpublished poison must be delivered again if this process dies.
        if bookmark and bookmark not in self._unpublished and self._discard is not None:
            self._discard(message)

    def _apply_record(self, message: Any) -> None:
        """Apply one record of the poison list; at its end, publish ours again."""
        command = message.get_command()
        if command == "group_end":
            log.info("%s is live: %d messages are poison", self._topic, len(self._why))
            self._loaded.set()
            self._publish_again()
        elif command in {"sow", "publish"}:
            bookmark, why = _read_record(message.get_data_raw())
            if bookmark:
                self._why[bookmark] = why
                self._unpublished.discard(bookmark)
            if bookmark and command == "publish":
                log.info(
                    "%.300r is poison, says %s: %.300r", bookmark, self._topic, why
                )

    def _publish_again(self) -> None:
        """Publish again the poisons of ours that the AMPS list has not confirmed."""
        try:
            for bookmark in [*self._unpublished]:
                self._publish_record(bookmark)
        except AMPS.AMPSException as reason:  # the list is read again later
            log.warning("What is poison here is told later: %s", reason)

    def _note_error(self, error: Any) -> None:
        """Log an error of the AMPS poison list's monitor, unless the list is closed."""
        if not self._closed:  # closing raises errors, too
            log.error("The list of %s is not read: %r", self._topic, error)

    def close(self) -> None:
        """Close the monitor of the poison list; a second call does nothing."""
        self._closed = True
        self._monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bookmark_of(message: Any) -> str:
    """Return the bookmark of an AMPS message that may be handled on this thread.

    Raise Misconfigured for any other message.
    """
    try:
        bookmark = text_of(message.get_bookmark)
    except AttributeError:
        raise Misconfigured(
            f"MisterYuck takes messages of the AMPS client, not {type(message)!r}:"
            " pass it to the client's subscribe."
        ) from None
    try:
        refuse_borrowed(message)
    except Misconfigured as reason:
        # On other threads the exception may go unseen: log it.
        log.error("%.300r is not handled: %s", bookmark, reason)  # noqa: TRY400
        raise
    return bookmark


def _describe_error(error: BaseException) -> str:
    """Describe an exception for the poison list, cut to WHY_LIMIT."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may do anything
        text = ""
    if isinstance(error, SystemExit):
        text = f"Fatal error: the handler ended the process ({text})."
    return text[:WHY_LIMIT] or type(error).__name__


def _read_record(data: bytes) -> tuple[str, str]:
    """Parse a record of the poison list; return bookmark and reason, or two ""."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    bookmark = record.get("bookmark") if isinstance(record, dict) else None
    if not isinstance(bookmark, str) or not isinstance(record, dict):
        log.warning("A record of the poison topic names no bookmark: %.100r", data)
        return "", ""
    return bookmark, str(record.get("why"))[:WHY_LIMIT]
