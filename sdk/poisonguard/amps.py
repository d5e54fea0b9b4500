"""Poisonweb for the AMPS Python client as it is: positions, and a shared skip list.

    client = AMPS.HAClient("billing-1")
    store = BookmarkStore(url, api_key, client_name="billing-1")
    client.set_bookmark_store(store)
    client.set_server_chooser(chooser)
    client.connect_and_logon()
    guarded = MisterYuck(client, handler)
    client.bookmark_subscribe(guarded, "orders", "recent", sub_id="eu")

`MisterYuck` shares its list through a topic of AMPS itself, as ever. A `poisonguard`
`Guard` shares it through Poisonweb, retries first, and notices a crash of the process.
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
RECONNECT_WITHIN = 2.0  # seconds between two tries of the monitor, at the most
LOGON = 5.0
_BOOKMARK = re.compile(r"(?<!\d)(\d{1,20})\|(\d{1,20})\|", re.ASCII)
# What the client calls a subscription that was given no sub id: the number of its
# command. After a restart it may be that of another subscription, so no position is
# kept under it. Nor is it refused: the article's own program subscribes without.
_MADE_UP = re.compile(r"auto\d+")


class BookmarkStore:
    """A bookmark store for `Client.set_bookmark_store`, kept in Poisonweb.

    Subscribe with a sub id that stays the same and the bookmark `recent`. A message is
    settled by `client.discard(message)`, in any order; what was settled before is not
    delivered again. `topics` names the topic of a sub id; without it, it is that of its
    first message.

    The client drops a message when its store raises. So this one raises only where no
    message can be lost: `get_most_recent` when the position cannot be read, which
    refuses the subscription. Whoever is fenced goes on getting messages and settles
    none; `on_fenced` is the place to unsubscribe, or to subscribe again and resume
    where the position is now.
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
        """Take note of nothing: all versions are alike to this store."""

    def get_most_recent(self, sub_id: str) -> str:
        """Tell where a subscription resumes: after a bookmark of each publisher."""
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
        """Note that a message came; wait while too many are unsettled."""
        sub_id, topic = message.get_sub_id(), text_of(message.get_topic) or None
        self._make_known(sub_id, topic)
        places = _places(text_of(message.get_bookmark))
        try:
            for place in places:
                self._positions.received(sub_id, *place, topic=topic)
            if not places:
                self._positions.received(sub_id, "", None)  # it counts those
        except GuardError as reason:
            log.debug("A message of %s is not tracked: %s", sub_id, reason)
        return places[-1][1] if places else 0

    def discard_message(self, message: Any) -> None:
        """Settle a message."""
        for place in _places(text_of(message.get_bookmark)):
            self._positions.settle(message.get_sub_id(), *place)

    def persisted(self, sub_id: str, bookmark: str) -> None:
        """Note how far the server has replicated what this subscription gets."""
        for place in _places(bookmark):
            self._positions.persisted(sub_id, *place)

    def _make_known(self, sub_id: str | None, topic: str | None) -> None:
        """Open a subscription that began without asking where; whatever happens."""
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
            # The client asks again at once, and for ever.
            time.sleep(PAUSE)
            raise

    # What the application calls

    @property
    def fenced(self) -> frozenset[str]:
        """The sub ids that somebody else has taken over or moved since."""
        return self._positions.fenced

    def fence(self, fence: Fence) -> None:
        """Heed the word of a skip list's `on_fence`, ahead of the next write."""
        self._positions.fence(fence)

    def health(self) -> Health:
        return self._positions.health()

    def flush(self) -> None:
        """Write all that has been settled so far, or raise what keeps it from that."""
        self._positions.flush()

    def close(self) -> None:
        """Flush, and end; close the client first."""
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
    """Wrap a handler: known poison is skipped, new poison is told to all others.

    The list is a SOW topic of the client's own AMPS server, with the key `/bookmark`.
    It is read by a client of its own, the monitor, which comes back by itself when it
    is cut off. `servers` are its urls or its server chooser; without them it goes where
    the chooser of an `HAClient` goes, and stays with the one server of a plain client.
    `authenticator` logs it on; without one, that of the client's chooser does. With a
    `heartbeat`, in seconds, it also leaves a server that falls silent.

    Raise `StartTimeout` when the list is not there in time: without it no message may
    be handled. What the handler raises is raised again, once the topic has it; an
    `HAClient` is told to discard what is poison, so that it never comes back.

    With a started `guard`, whose reader is an `AmpsReader`, failures are retried as its
    policy says, a message that kills the process is found, and Poisonweb keeps what is
    poison. What the guard releases is neither told nor discarded.
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
        )  # ours, as far as the topic has not shown them
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
            # Not KeyboardInterrupt and the like: those are nobody's poison.
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
        """Skip it from here on, and tell the others; whatever keeps us from that."""
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
        # What nobody else knows of must come again, if this process dies.
        if bookmark and bookmark not in self._unpublished and self._discard is not None:
            self._discard(message)

    def _learn(self, message: Any) -> None:
        """Take over one record of the topic; at the end of them, tell what is ours."""
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
        except AMPS.AMPSException as reason:  # it ends with the list, which comes anew
            log.warning("What is poison here is told later: %s", reason)

    def _note_error(self, error: Any) -> None:
        if not self._closed:  # then it is what ends it
            log.error("The list of %s is not read: %r", self._topic, error)

    def close(self) -> None:
        """End the client that reads the list; again does nothing."""
        self._closed = True
        self._monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _MonitorServers:
    """The server chooser of the monitor: where it goes, and how it logs on.

    The client's own chooser is asked and told nothing: which server is next is for the
    client to say, and the list belongs to where its messages come from.
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
        if self._is_live:  # one line for each time that it is cut off
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
    """Find the monitor's chooser; tell whether it is its own, and not the client's."""
    uri, theirs = client.get_uri(), None
    if uri and hasattr(client, "get_server_chooser"):
        # Asked for it before it has one, an HAClient ends the process.
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
    """Make the client that reads the list.

    A client that waits for an answer in one of its own handlers waits for ever, so it
    has to be another than the one that is guarded.
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
        # Whoever hands messages to other threads may never look at what is raised.
        log.error("%.300r is not handled: %s", bookmark, reason)  # noqa: TRY400
        raise
    return bookmark


def _why(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it is the message's, and may do anything
        text = ""
    if isinstance(error, SystemExit):
        text = f"Fatal error: the handler ended the process ({text})."
    return text[:WHY_LIMIT] or type(error).__name__


def _read(data: bytes) -> tuple[str, str]:
    """Read a record; anybody may write to the topic, so it may be anything."""
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
    """Write a bookmark of each publisher; `p|0|` is before the first of p."""
    if not resume.positions:
        return NOW if resume.start is Start.NOW else EPOCH
    return ",".join(_bookmark(p, seq or 0) for p, seq in resume.positions.items())


# Each is asked for three times: when it comes, when it is logged, when discarded.
@lru_cache(4_096)
def _places(bookmark: str | None) -> tuple[tuple[str, int], ...]:
    """Read a bookmark, or a list of them; one that is no place gives nothing."""
    matches = _BOOKMARK.findall(bookmark or "")
    return tuple((publisher, int(seq)) for publisher, seq in matches)
