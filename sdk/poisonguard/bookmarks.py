"""Stores a consumer's positions in Poisonweb, so that it resumes where it stopped.

    with BookmarkStore(url, api_key, client_name="billing-1") as store:
        resume = store.open("eu", "orders")
        for message in subscribe("orders", after=resume.positions):
            place = ("eu", message.publisher, message.seq)
            if not store.is_settled(*place):
                store.received(*place)
                workers.submit(handle, message)  # and when it is done: settle(*place)

Messages may be settled in any order and from any thread. Settled messages are written
about once a second, for all subscriptions in one request. So after a kill -9 only these
come again: the messages in flight, and those settled since the last write, about a
second's worth. While Poisonweb is away, nothing stops and nothing is lost, but more
messages are unwritten until it is back: see `health()`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from threading import Condition, Event, Lock, Thread
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from poisonguard.errors import (
    Away,
    Fenced,
    GuardError,
    Misconfigured,
    Refused,
    Stopping,
)
from poisonguard.positions.calls import PositionCalls, Update
from poisonguard.positions.progress import (
    IN_FLIGHT_LIMIT,
    SEQ_LIMIT,
    Resume,
    Start,
    Subscription,
    Track,
)
from poisonguard.server.client import Client
from poisonguard.skipping.skip_list import Fence

__all__ = ["BookmarkStore", "Health", "Resume", "Start"]

log = logging.getLogger(__name__)

RETRY_LIMIT = 5.0  # seconds between tries while the server is away, at the most
LOG_EVERY = 60.0  # seconds between log lines about the same trouble
UPDATES_LIMIT = 10_000  # what the server accepts in one request


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of a store; `written_ago` is in seconds, None before the first write.

    After a kill -9 the `unwritten` messages and those `in_flight` would come again. At
    a `pressure` of 1, `received` waits until other messages are settled.
    """

    written_ago: float | None
    unwritten: int
    in_flight: int
    runs: int
    pressure: float
    duplicates: int
    ignored: int
    fenced: frozenset[str]
    warnings: tuple[str, ...]


class BookmarkStore:
    """The positions of one client name, by sub id and publisher; thread-safe.

    It has a connection and a thread of its own: `settle` never waits and never raises,
    so a handler may call it. `received` waits while a publisher has 3,072 runs of
    settled messages, or `in_flight_limit` messages unsettled; `is_pressed` says so
    beforehand, for callers that must not wait.

    Opening a subscription takes it over. The former holder is *fenced*: it learns so
    with its next write (`on_fenced` gets the sub id), cannot settle any more, and must
    open the subscription again to go on. A person who moves the position fences the
    holder, too.

    Where a publisher's numbers may begin again, because its log was removed, call
    `asked` with the place where the broker is asked to begin, and `arrived` for each
    message: numbers alone do not tell new messages from old ones.
    """

    def __init__(  # noqa: PLR0913 - each a setting of its own
        self,
        url: str | Sequence[str],
        api_key: str | Callable[[], str],
        *,
        client_name: str,
        interval: float = 1.0,
        in_flight_limit: int = IN_FLIGHT_LIMIT,
        on_fenced: Callable[[str], object] | None = None,
        bookmark: Callable[[str, int], str] | None = None,
    ) -> None:
        self._client = Client([url] if isinstance(url, str) else url, api_key)
        self._client_name = client_name
        self._calls = PositionCalls(
            client=self._client, client_name=client_name, bookmark=bookmark
        )
        self._interval = interval
        self._in_flight_limit = in_flight_limit
        self._on_fenced = on_fenced
        self._subscriptions: dict[str, Subscription] = {}
        self._counts: Counter[str] = Counter()
        self._written_at: float | None = None
        self._trouble: str | None = None
        self._logged_at: dict[str, float] = {}
        self._closed: str | None = None
        self._make_locks()
        _STORES.add(self)
        name = f"poisonguard positions of {client_name}"
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _make_locks(self) -> None:
        self._changed = Condition()  # guards all state; never held for long
        self._calling = Lock()  # held during calls of the server
        self._wake = Event()

    # Opening

    def open(
        self,
        sub_id: str | None,
        topic: str | None = None,
        *,
        start: Start | str = Start.EARLIEST,
    ) -> Resume:
        """Take a subscription over and return where it resumes.

        Without a topic, use the server's, or the first message's. Raise `Away` or
        `Refused` when the position cannot be read: it never counts as empty.
        """
        if not sub_id:
            raise Misconfigured(
                "A subscription without a sub id cannot be found again after a restart:"
                " give it one that stays the same."
            )
        start = Start(start)
        subscription = self._subscriptions.get(sub_id)
        if subscription is not None and subscription.can_write:
            self._write()
        with self._calling:
            return self._open(sub_id, topic, start)

    def open_later(
        self, sub_id: str, topic: str | None, *, start: Start = Start.EARLIEST
    ) -> None:
        """Accept messages now, and take the subscription over as soon as possible.

        For clients that start by themselves and must lose no message while Poisonweb is
        away. The server's position is merged later; until then duplicates get through.
        """
        with self._changed:
            new = Subscription(sub_id=sub_id, topic=topic, start=start)
            self._subscriptions.setdefault(sub_id, new)
        self._wake.set()

    def open_unkept(self, sub_id: str, *, start: Start = Start.EARLIEST) -> None:
        """Track a subscription in memory only: its sub id may change next time."""
        with self._changed:
            if sub_id in self._subscriptions:
                return
            new = Subscription(sub_id=sub_id, topic=None, start=start, is_kept=False)
            self._subscriptions[sub_id] = new
        log.warning("%s", "; ".join(new.warnings))

    def resume(
        self, sub_id: str, topic: str | None = None, *, start: Start = Start.EARLIEST
    ) -> Resume:
        """Return where a subscription resumes; open it first where that is needed.

        It is needed before its first opening, and after it was fenced.
        """
        resume = self._resume(sub_id)
        if resume is None:
            with self._calling:
                resume = self._resume(sub_id) or self._open(sub_id, topic, start)
        return resume

    def _resume(self, sub_id: str) -> Resume | None:
        with self._changed:
            subscription = self._subscriptions.get(sub_id)
            if (
                subscription is None
                or subscription.is_fenced
                or subscription.awaits_opening
            ):
                return None
            return subscription.resume

    def _open(self, sub_id: str, topic: str | None, start: Start) -> Resume:
        subscription = self._subscriptions.get(sub_id)
        if subscription is not None and topic is None:
            topic = subscription.topic
        opened = self._calls.open(sub_id, topic, start)
        if subscription is None and not opened.tracks and start is not Start.NOW:
            # A typo would have all messages handled again: warn.
            log.warning(
                "The subscription %s of %s has no position and begins with the first"
                " message there is. Had it one, compare client name, sub id and topic.",
                sub_id,
                self._client_name,
            )
        with self._changed:
            if subscription is None or subscription.epoch is not None:
                subscription = self._subscriptions[sub_id] = opened
            else:
                subscription.learn(opened)
            self._changed.notify_all()
            return subscription.resume

    def is_known(self, sub_id: str) -> bool:
        return sub_id in self._subscriptions

    # Messages

    def asked(self, sub_id: str, resume: Resume) -> None:
        """Note where the broker is asked to begin; call it for each subscribe.

        After it, `arrived` detects a publisher whose numbers begin again.
        """
        with self._changed:
            self._subscriptions[sub_id].ask(resume)

    def arrived(self, sub_id: str | None, publisher: str, seq: int | None) -> None:
        """Note an arriving message, settled or not; call it before `is_settled`.

        Where its publisher's numbers begin again, they belong to new messages: from
        here on the earlier numbers do not count as settled.
        """
        with self._changed:
            subscription = self._find(sub_id, seq)
            if subscription is None or seq is None:
                return
            if subscription.arrive(publisher, seq):
                self._log_trouble(
                    subscription.begun_again(publisher), level=logging.ERROR
                )

    def received(
        self,
        sub_id: str | None,
        publisher: str,
        seq: int | None,
        *,
        topic: str | None = None,
    ) -> None:
        """Note a message before it is handled; wait while under pressure.

        Call it in the order in which a publisher's messages arrive. A message without a
        sub id or a valid number is ignored and counted. Raise `Fenced` or `Stopping`
        when messages cannot be settled here any more.
        """
        if sub_id and sub_id not in self._subscriptions:
            raise Misconfigured(
                f"The subscription {sub_id} is not open: open it first."
            )
        with self._changed:
            subscription = self._find(sub_id, seq)
            if subscription is None or seq is None:
                self._counts["ignored"] += 1
                return
            if topic is not None and subscription.learn_topic(topic):
                self._wake.set()
            while self._has_to_wait(subscription, publisher, seq):
                self._changed.wait(self._interval)
            subscription.receive(publisher, seq)

    def settle(self, sub_id: str | None, publisher: str, seq: int | None) -> bool:
        """Settle a handled message; return False if that changes nothing.

        Only messages received since the subscription was opened can be settled.
        """
        with self._changed:
            subscription = self._find(sub_id, seq)
            if subscription is None or seq is None:
                return False
            if subscription.is_fenced or self._closed:
                return False
            if not subscription.settle(publisher, seq):
                return False
            self._changed.notify_all()
            return True

    def persisted(self, sub_id: str | None, publisher: str, seq: int | None) -> None:
        """Note up to where the broker has replicated, where it tracks that.

        A subscription resumes at this place or at the settled one: at the lesser.
        """
        with self._changed:
            subscription = self._find(sub_id, seq)
            if subscription is not None and seq is not None:
                track = subscription.track(publisher)
                if track is None:
                    track = subscription.tracks[publisher] = Track()
                track.persist(seq)

    def is_settled(self, sub_id: str | None, publisher: str, seq: int | None) -> bool:
        """Tell whether an arriving message was settled before; count it if so."""
        with self._changed:
            subscription = self._find(sub_id, seq)
            if subscription is None or seq is None:
                return False
            if not subscription.is_settled(publisher, seq):
                return False
            self._counts["duplicates"] += 1
            return True

    def is_pressed(self, sub_id: str, publisher: str) -> bool:
        """Tell whether `received` would wait with the next message."""
        with self._changed:
            subscription = self._subscriptions.get(sub_id)
            track = subscription.track(publisher) if subscription else None
            return track is not None and self._is_pressed(track, SEQ_LIMIT)

    def _find(self, sub_id: str | None, seq: int | None) -> Subscription | None:
        subscription = self._subscriptions.get(sub_id) if sub_id else None
        usable = seq is not None and 0 <= seq <= SEQ_LIMIT
        return subscription if usable else None

    def _has_to_wait(
        self, subscription: Subscription, publisher: str, seq: int
    ) -> bool:
        if self._closed:
            raise Stopping(self._closed)
        if subscription.is_fenced:
            raise Fenced(_taken_over(subscription.sub_id))
        track = subscription.track(publisher)
        if track is None or not self._is_pressed(track, seq):
            return False
        self._log_trouble(
            f"The subscription {subscription.sub_id} waits: {len(track.in_flight)}"
            f" messages are unsettled, between {len(track.settled)} runs of settled"
            " ones. Settle the oldest."
        )
        return True

    def _is_pressed(self, track: Track, seq: int) -> bool:
        return track.is_pressed(seq, in_flight_limit=self._in_flight_limit)

    # Fences

    @property
    def fenced(self) -> frozenset[str]:
        """Return the sub ids that another holder opened, or a person moved."""
        with self._changed:
            subscriptions = self._subscriptions.values()
            return frozenset(it.sub_id for it in subscriptions if it.is_fenced)

    def fence(self, fence: Fence) -> None:
        """Apply a fence of a skip list's `on_fence`, ahead of the next write."""
        if fence.client_name != self._client_name:
            return
        with self._changed:
            subscription = self._subscriptions.get(fence.sub_id)
            if subscription is None or not subscription.is_older_than(fence):
                return
            subscription.is_fenced = True
            self._changed.notify_all()
        self._tell_fenced([subscription.sub_id])

    def _tell_fenced(self, sub_ids: Sequence[str]) -> None:
        for sub_id in sub_ids:
            log.error("%s", _taken_over(sub_id))
            if self._on_fenced is not None:
                self._on_fenced(sub_id)

    # Writing

    def flush(self) -> None:
        """Write all settled messages, or raise the reason why that failed.

        `Away`: they are kept, and writing is tried again. `Refused`: the same, but a
        person has to act. `Fenced`: they come again to the new holder.
        """
        unopened = self._write()
        if self._has_unwritten():  # one request could not hold all
            unopened = self._write()
        if unopened is not None:
            raise unopened
        with self._changed:
            for subscription in self._subscriptions.values():
                if subscription.is_fenced:
                    raise Fenced(_taken_over(subscription.sub_id))
                if subscription.trouble is not None:
                    raise Refused(subscription.trouble)
                for publisher, track in subscription.restarts.items():
                    if subscription.is_kept and track.messages:
                        raise Refused(subscription.begun_again(publisher))

    def close(self) -> None:
        """Flush and close; raise like `flush`, but close in any case."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._changed:
                self._closed = "The bookmark store is closed: make another."
                self._changed.notify_all()
            self._wake.set()
            self._thread.join()
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except GuardError:
            if kind is None:
                raise
            log.exception("The last positions were not written")

    def _run(self) -> None:
        failures = 0
        while True:
            self._wake.wait(min(self._interval * 2**failures, RETRY_LIMIT))
            self._wake.clear()
            if self._closed:
                return
            try:
                unopened = self._write()
                failures = 0
                if unopened is not None:
                    self._log_trouble(f"A subscription is opened later: {unopened}")
            except Exception as error:  # noqa: BLE001 - the thread must go on
                failures = min(failures + 1, 8)
                self._log_trouble(
                    f"Positions are not written, and tried again: {error}"
                )

    def _write(self) -> GuardError | None:
        """Open waiting subscriptions, then write all changes.

        Return the reason why a subscription could not be opened; the others are written
        all the same.
        """
        try:
            with self._calling:
                unopened = self._open_waiting()
                fenced = self._settle()
        except GuardError as error:
            self._trouble = str(error)
            raise
        self._trouble = str(unopened) if unopened is not None else None
        # Without the lock: `on_fenced` may open the subscription again.
        self._tell_fenced(fenced)
        return unopened

    def _open_waiting(self) -> GuardError | None:
        """Open waiting subscriptions; return the first reason why one cannot be."""
        first: GuardError | None = None
        for waiting in self._waiting():
            try:
                self._open(waiting.sub_id, waiting.topic, waiting.start)
            except Away as away:  # the others would wait in vain, too
                return first or away
            except GuardError as error:
                first = first or error
        return first

    def _waiting(self) -> list[Subscription]:
        with self._changed:
            subscriptions = self._subscriptions.values()
            return [
                it for it in subscriptions if it.awaits_opening and it.topic is not None
            ]

    def _settle(self) -> list[str]:
        """Write all changes in one request; return the sub ids that are fenced."""
        with self._changed:
            updates = [*islice(self._take_updates(), UPDATES_LIMIT)]
        if not updates:
            return []
        answers: list[Mapping[str, Any]] = [{"status": "lost"}] * len(updates)
        try:
            answers = self._calls.settle(updates)
        finally:
            with self._changed:
                for update in updates:
                    update.subscription.trouble = None
                fenced = [*map(self._judge, updates, answers)]
                self._changed.notify_all()
        self._written_at = time.monotonic()
        return sorted({sub_id for sub_id in fenced if sub_id is not None})

    def _has_unwritten(self) -> bool:
        with self._changed:
            writable = [it for it in self._subscriptions.values() if it.can_write]
            return any(t.unwritten for it in writable for t in it.tracks.values())

    def _take_updates(self) -> Iterator[Update]:
        return (
            Update(subscription=subscription, publisher=publisher, changes=changes)
            for subscription in self._subscriptions.values()
            if subscription.can_write
            for publisher, track in subscription.tracks.items()
            if (changes := track.take_changes()) is not None
        )

    def _judge(self, update: Update, answer: Mapping[str, Any]) -> str | None:
        subscription = update.subscription
        if answer["status"] == "fenced":
            newly, subscription.is_fenced = not subscription.is_fenced, True
            return subscription.sub_id if newly else None
        track = subscription.tracks[update.publisher]
        if answer["status"] == "ok":
            track.confirm(update.changes)
        else:
            track.give_back(update.changes)
        if answer["status"] not in ("ok", "lost"):
            # An unknown status of a newer server may mean that it was not written.
            subscription.trouble = (
                f"The position of {subscription.sub_id} is not taken:"
                f" {answer.get('detail') or answer['status']!s:.100}"
            )
            self._log_trouble(subscription.trouble)
        return None

    def _log_trouble(self, line: str, *, level: int = logging.WARNING) -> None:
        """Log a problem, but not every second."""
        kind, now = line.split(":", 1)[0], time.monotonic()
        if now - self._logged_at.get(kind, -LOG_EVERY) >= LOG_EVERY:
            self._logged_at[kind] = now
            log.log(level, "%s", line)

    # Health

    def health(self) -> Health:
        """Return the state of this store, for health pages and logs."""
        with self._changed:
            subscriptions = list(self._subscriptions.values())
            tracks = [track for it in subscriptions for track in _all_tracks(it)]
            writable = [it for it in subscriptions if it.is_kept and not it.is_fenced]
            unwritten = [track.messages for it in writable for track in _all_tracks(it)]
            warnings = [line for it in subscriptions for line in it.warnings]
            at, limit = self._written_at, self._in_flight_limit
            return Health(
                written_ago=None if at is None else time.monotonic() - at,
                unwritten=sum(unwritten),
                in_flight=sum(len(track.in_flight) for track in tracks),
                runs=max((len(track.settled) for track in tracks), default=0),
                pressure=max((t.pressure(limit) for t in tracks), default=0.0),
                duplicates=self._counts["duplicates"],
                ignored=self._counts["ignored"],
                fenced=self.fenced,
                warnings=(*warnings, *([self._trouble] if self._trouble else [])),
            )


def _all_tracks(subscription: Subscription) -> Iterator[Track]:
    return chain(subscription.tracks.values(), subscription.restarts.values())


def _taken_over(sub_id: str) -> str:
    return (
        f"The subscription {sub_id} was opened by another holder, or moved by a person:"
        " nothing more is settled here until it is opened again."
    )


_STORES: WeakSet[BookmarkStore] = WeakSet()


def _leave_to_the_parent() -> None:
    """Close the stores in a forked child: their threads exist only in the parent."""
    for store in list(_STORES):
        store._closed = "This process was forked off: make a store of its own."  # noqa: SLF001
        store._make_locks()  # noqa: SLF001 - a thread of the parent may hold them


os.register_at_fork(after_in_child=_leave_to_the_parent)
