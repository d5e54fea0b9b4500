"""Poisonweb for the AMPS Python client: positions, and a shared skip list.

    client = AMPS.HAClient("billing-1")
    store = BookmarkStore(url, api_key, client_name="billing-1")
    client.set_bookmark_store(store)
    client.set_server_chooser(chooser)
    client.connect_and_logon()
    guarded = MisterYuck(client, handler)
    client.bookmark_subscribe(guarded, "orders", "recent", sub_id="eu")

`MisterYuck` shares its list through a topic of AMPS. A `poisonguard.Guard` shares it
through Poisonweb, retries first, and detects messages that kill the process.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import Event, current_thread, main_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import AMPS

from poisonguard import bookmarks
from poisonguard.bookmarks import Health, Start
from poisonguard.errors import GuardError, Misconfigured, StartTimeout, Stopping
from poisonguard.outcome import Outcome
from poisonguard.positions.progress import IN_FLIGHT_LIMIT, Resume
from poisonguard.processes.stopping import end_process
from poisonguard.readers.amps import refuse_borrowed, text_of
from poisonguard.skipping.skip_list import Fence

if TYPE_CHECKING:
    from poisonguard.guard import Guard

__all__ = ["BookmarkStore", "MisterYuck", "Start"]

log = logging.getLogger(__name__)

EPOCH, NOW = "0", "0|1|"  # the bookmarks of the beginning and of the end
POISON_TOPIC = "ADMIN_PoisonMessages"
WHY_LIMIT = 10_000

PAUSE = 0.5  # seconds
FLUSH = 5.0
RECONNECT_WITHIN = 2.0  # seconds between tries of the monitor, at the most
LOGON = 5.0
_BOOKMARK = re.compile(r"(?<!\d)(\d{1,20})\|(\d{1,20})\|", re.ASCII)
# The client's name of a subscription without a sub id: the number of its command. After
# a restart another subscription may get it, so no position is stored under it. It is
# not refused, as the program in the AMPS article subscribes without a sub id.
_MADE_UP = re.compile(r"auto\d+")


class BookmarkStore:
    """A bookmark store for `Client.set_bookmark_store`, kept in Poisonweb.

    Subscribe with a sub id that stays the same and the bookmark `recent`. A message is
    settled by `client.discard(message)`, in any order; settled messages are not
    delivered again. `topics` names the topic of a sub id; without it, the topic of its
    first message is used.

    The client drops a message when its store raises. So this store raises only where no
    message can be lost: in `get_most_recent`, which refuses the subscription when the
    position cannot be read. A fenced holder still gets messages but settles none;
    in `on_fenced`, unsubscribe, or subscribe again to resume at the new position.
    """

    def __init__(  # noqa: PLR0913 - each a setting of its own
        self,
        url: str | Sequence[str],
        api_key: str | Callable[[], str],
        *,
        client_name: str,
        topics: Mapping[str, str] | None = None,
        start: Start | str = Start.EARLIEST,
        interval: float = 1.0,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
        on_fenced: Callable[[str], object] | None = None,
    ) -> None:
        self._topics = dict(topics or {})
        self._start = Start(start)
        self._positions = bookmarks.BookmarkStore(
            url,
            api_key,
            client_name=client_name,
            interval=interval,
            in_flight_limit=in_flight_limit,
            on_fenced=on_fenced,
            bookmark=_bookmark,
        )

    # What the client calls

    def set_server_version(self, version: int) -> None:
        """Do nothing: the store works alike for all versions."""

    def get_most_recent(self, sub_id: str) -> str:
        """Return where a subscription resumes: after a bookmark of each publisher."""
        if _MADE_UP.fullmatch(sub_id):
            self._positions.open_unkept(sub_id, start=self._start)
        resume = self._open(sub_id, self._topics.get(sub_id))
        self._positions.asked(sub_id, resume)
        return _begin(resume)

    def is_discarded(self, message: Any) -> bool:
        """Tell whether a message was settled before; the client drops it then."""
        sub_id = message.get_sub_id()
        self._make_known(sub_id, text_of(message.get_topic))
        places = _places(text_of(message.get_bookmark))
        if len(places) != 1:
            return False
        self._positions.arrived(sub_id, *places[0])
        return self._positions.is_settled(sub_id, *places[0])

    def log(self, message: Any) -> int:
        """Note that a message arrived; wait while too many are unsettled."""
        sub_id, topic = message.get_sub_id(), text_of(message.get_topic) or None
        self._make_known(sub_id, topic)
        places = _places(text_of(message.get_bookmark))
        try:
            for place in places:
                self._positions.received(sub_id, *place, topic=topic)
            if not places:
                self._positions.received(sub_id, "", None)  # counts it as ignored
        except GuardError as reason:
            log.debug("A message of %s is not tracked: %s", sub_id, reason)
        return places[-1][1] if places else 0

    def discard_message(self, message: Any) -> None:
        """Settle a message."""
        for place in _places(text_of(message.get_bookmark)):
            self._positions.settle(message.get_sub_id(), *place)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Note how far the server has replicated this subscription's messages."""
        for place in _places(bookmark):
            self._positions.persisted(sub_id, *place)

    def _make_known(self, sub_id: str | None, topic: str | None) -> None:
        """Open a subscription that began without `get_most_recent`; never raise."""
        if not sub_id or self._positions.is_known(sub_id):
            return
        if _MADE_UP.fullmatch(sub_id):
            self._positions.open_unkept(sub_id, start=self._start)
            return
        topic = self._topics.get(sub_id) or topic or None
        try:
            self._open(sub_id, topic)
        except Exception:
            log.exception("%s begins without its position, which is read later", sub_id)
            self._positions.open_later(sub_id, topic, start=self._start)

    def _open(self, sub_id: str, topic: str | None) -> Resume:
        try:
            return self._positions.resume(sub_id, topic, start=self._start)
        except GuardError:
            # The client retries at once, and for ever.
            time.sleep(PAUSE)
            raise

    # What the application calls

    @property
    def fenced(self) -> frozenset[str]:
        """Return the sub ids that another holder opened, or a person moved."""
        return self._positions.fenced

    def fence(self, fence: Fence) -> None:
        """Apply a fence of a skip list's `on_fence`, ahead of the next write."""
        self._positions.fence(fence)

    def health(self) -> Health:
        return self._positions.health()

    def flush(self) -> None:
        """Write all settled messages, or raise the reason why that failed."""
        self._positions.flush()

    def close(self) -> None:
        """Flush and close; close the client first."""
        self._positions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._positions.__exit__(kind, error, traceback)


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
        self._monitor = _monitor(
            _MonitorServers(
                _chooser(client, servers), authenticator=authenticator, topic=topic
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
        deadline = time.monotonic() + timeout
        try:
            self._monitor.connect_and_logon()
            self._monitor.set_reconnect_delay_strategy(
                AMPS.ExponentialDelayStrategy(
                    maximum_delay=int(RECONNECT_WITHIN * 1000)
                )
            )
            self._monitor.sow_and_subscribe(
                self._learn, self._topic, timeout=int(timeout * 1000)
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
        try:
            self._handler(message)
        except (Exception, SystemExit) as error:
            # KeyboardInterrupt and the like are no failures of a message.
            self._poison(bookmark, _why(error))
            self._settle(message, bookmark)
            is_main = current_thread() is main_thread()
            if isinstance(error, SystemExit) and not is_main:
                end_process(error.code)
            raise

    def _handle_guarded(self, message: Any, bookmark: str, guard: Guard) -> None:
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
            self._poison(bookmark, _why(errors[-1]) if errors else reason)
        if outcome is not Outcome.RELEASE:
            self._settle(message, bookmark)
        if errors:
            raise errors[-1]

    def _poison(self, bookmark: str, why: str) -> None:
        """Skip it from here on, and announce it; never raise when that fails."""
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
        record = {"bookmark": bookmark, "why": self._why[bookmark]}
        self._monitor.publish(self._topic, json.dumps(record))

    def _settle(self, message: Any, bookmark: str) -> None:
        # Unpublished poison must be delivered again if this process dies.
        if bookmark and bookmark not in self._unpublished and self._discard is not None:
            self._discard(message)

    def _learn(self, message: Any) -> None:
        """Apply one record of the topic; at the end of the list, publish ours again."""
        command = message.get_command()
        if command == "group_end":
            log.info("%s is live: %d messages are poison", self._topic, len(self._why))
            self._loaded.set()
            self._publish_again()
        elif command in {"sow", "publish"}:
            bookmark, why = _read(message.get_data_raw())
            if bookmark:
                self._why[bookmark] = why
                self._unpublished.discard(bookmark)
            if bookmark and command == "publish":
                log.info(
                    "%.300r is poison, says %s: %.300r", bookmark, self._topic, why
                )

    def _publish_again(self) -> None:
        try:
            for bookmark in [*self._unpublished]:
                self._publish_record(bookmark)
        except AMPS.AMPSException as reason:  # the list is read again later
            log.warning("What is poison here is told later: %s", reason)

    def _note_error(self, error: Any) -> None:
        if not self._closed:  # closing raises errors, too
            log.error("The list of %s is not read: %r", self._topic, error)

    def close(self) -> None:
        """Close the monitor; a second call does nothing."""
        self._closed = True
        self._monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _MonitorServers:
    """The server chooser of the monitor.

    It reads the client's own chooser but never reports to it: the client decides which
    server is next, and the list belongs to the server of its messages.
    """

    def __init__(
        self, chooser: tuple[Any, bool], *, authenticator: Any, topic: str
    ) -> None:
        self._chooser, self._is_ours = chooser
        self._authenticator = authenticator
        self._topic = topic
        self._is_live = True

    def get_current_uri(self) -> str:
        return str(self._chooser.get_current_uri() or "")

    def get_current_authenticator(self) -> Any:
        return self._authenticator or self._chooser.get_current_authenticator()

    def report_failure(self, error: Any, info: Any) -> None:
        if self._is_live:  # one line for each disconnect
            self._is_live = False
            log.warning("%s is not live until it is back: %s", self._topic, error)
        if self._is_ours:
            self._chooser.report_failure(error, info)

    def report_success(self, info: Any) -> None:
        self._is_live = True
        if self._is_ours:
            self._chooser.report_success(info)

    def get_error(self) -> str:
        return str(self._chooser.get_error())


def _chooser(client: Any, servers: Any) -> tuple[Any, bool]:
    """Return the monitor's chooser, and whether it is not the client's own."""
    uri, theirs = client.get_uri(), None
    if uri and hasattr(client, "get_server_chooser"):
        # An HAClient without a chooser ends the process here.
        theirs = client.get_server_chooser()
    if servers is None:
        if theirs is not None:
            return theirs, False
        if not uri:
            raise Misconfigured("The AMPS client has no server yet: connect it first.")
        servers = uri
    if not isinstance(servers, str | Sequence):
        return servers, servers is not theirs
    chooser = AMPS.DefaultServerChooser()
    for url in [servers] if isinstance(servers, str) else servers:
        chooser.add(url)
    return chooser, True


def _monitor(chooser: _MonitorServers, timeout: float) -> Any:
    """Create the client that reads the list.

    A client that waits for an answer in its own handler waits for ever, so the monitor
    must be another client than the guarded one.
    """
    client = AMPS.HAClient(f"poison_monitor-{uuid4()}", no_store=True)
    client.set_server_chooser(chooser)
    client.set_retry_on_disconnect(False)  # a handler must not wait for a server
    client.set_timeout(int(timeout * 1000))
    delay_strategy = AMPS.ExponentialDelayStrategy(
        maximum_retry_time=int(timeout * 1000)
    )
    client.set_reconnect_delay_strategy(delay_strategy)
    return client


def _bookmark_of(message: Any) -> str:
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


def _why(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ may do anything
        text = ""
    if isinstance(error, SystemExit):
        text = f"Fatal error: the handler ended the process ({text})."
    return text[:WHY_LIMIT] or type(error).__name__


def _read(data: bytes) -> tuple[str, str]:
    """Parse a record, which may be anything: others may write to the topic."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    bookmark = record.get("bookmark") if isinstance(record, dict) else None
    if not isinstance(bookmark, str) or not isinstance(record, dict):
        log.warning("A record of the poison topic names no bookmark: %.100r", data)
        return "", ""
    return bookmark, str(record.get("why"))[:WHY_LIMIT]


def _bookmark(publisher: str, seq: int) -> str:
    return f"{publisher}|{seq}|"


def _begin(resume: Resume) -> str:
    """Return a bookmark for each publisher; `p|0|` is before the first of p."""
    if not resume.positions:
        return NOW if resume.start is Start.NOW else EPOCH
    return ",".join(_bookmark(p, seq or 0) for p, seq in resume.positions.items())


# Called three times per message: on arrival, when logged, when discarded.
@lru_cache(4_096)
def _places(bookmark: str | None) -> tuple[tuple[str, int], ...]:
    """Parse a bookmark, or a list of them; ignore invalid ones."""
    matches = _BOOKMARK.findall(bookmark or "")
    return tuple((publisher, int(seq)) for publisher, seq in matches)
