"""Store a consumer's positions in Poisonweb, so that it resumes where it stopped.

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
from collections.abc import Callable, Sequence
from threading import Condition
from types import TracebackType
from typing import Self
from weakref import WeakSet

from poisonguard.errors import Fenced, GuardError, Misconfigured, Stopping
from poisonguard.positions import lost_subscription_callback
from poisonguard.positions.bookmark_store_health import Health, health
from poisonguard.positions.position_api_calls import PositionCalls
from poisonguard.positions.subscription_progress import (
    IN_FLIGHT_LIMIT,
    SEQ_LIMIT,
    Resume,
    Start,
    Subscription,
    Track,
)
from poisonguard.positions.trouble_log import TroubleLog
from poisonguard.positions.writer import PositionWriter
from poisonguard.positions.writer_thread import WriterThread
from poisonguard.server.http_client import Client
from poisonguard.skipping.skip_list import Fence

__all__ = ["BookmarkStore", "Health", "Resume", "Start"]

log = logging.getLogger(__name__)


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
        self._interval = interval
        self._in_flight_limit = in_flight_limit
        self._on_fenced = on_fenced
        self._subscriptions: dict[str, Subscription] = {}
        self._counts: Counter[str] = Counter()
        self._trouble_log = TroubleLog()
        self._closed: str | None = None
        self._changed = Condition()  # guards all state; never held for long
        self._writer = PositionWriter(
            PositionCalls(
                client=self._client, client_name=client_name, bookmark=bookmark
            ),
            self._subscriptions,
            changed=self._changed,
            trouble_log=self._trouble_log,
            on_fenced=on_fenced,
        )
        self._thread = WriterThread(
            self._writer,
            name=f"poisonguard positions of {client_name}",
            interval=interval,
            trouble_log=self._trouble_log,
        )
        _STORES.add(self)

    # Opening

    def open(
        self,
        sub_id: str | None,
        topic: str | None = None,
        *,
        start: Start | str = Start.EARLIEST,
    ) -> Resume:
        """Take over a subscription's position and return where it resumes.

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
        if subscription is not None and subscription.can_store_positions:
            self._writer.write()
        return self._writer.open(sub_id, topic, start)

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
        self._thread.wake()

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
        return self._writer.resume(sub_id, topic, start)

    def is_known(self, sub_id: str) -> bool:
        """Tell whether a subscription's position was opened here, or is to be."""
        return sub_id in self._subscriptions

    # Messages

    def asked(self, sub_id: str, resume: Resume) -> None:
        """Note where the broker is asked to begin a subscription.

        Call it for each subscribe. After it, `arrived` detects a publisher whose
        numbers begin again.
        """
        with self._changed:
            self._subscriptions[sub_id].note_delivery_start(resume)

    def arrived(self, sub_id: str | None, publisher: str, seq: int | None) -> None:
        """Note an arriving message, settled or not; call it before `is_settled`.

        Where its publisher's numbers begin again, they belong to new messages: from
        here on the earlier numbers do not count as settled.
        """
        with self._changed:
            subscription = self._subscription_of(sub_id, seq)
            if subscription is None or seq is None:
                return
            if subscription.arrive(publisher, seq):
                self._trouble_log.log(
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
            subscription = self._subscription_of(sub_id, seq)
            if subscription is None or seq is None:
                self._counts["ignored"] += 1
                return
            if topic is not None and subscription.learn_topic(topic):
                self._thread.wake()
            while self._has_to_wait(subscription, publisher, seq):
                self._changed.wait(self._interval)
            subscription.receive(publisher, seq)

    def settle(self, sub_id: str | None, publisher: str, seq: int | None) -> bool:
        """Settle a handled message; return False if that changes nothing.

        Only messages received since the subscription was opened can be settled.
        """
        with self._changed:
            subscription = self._subscription_of(sub_id, seq)
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
            subscription = self._subscription_of(sub_id, seq)
            if subscription is not None and seq is not None:
                track = subscription.track(publisher)
                if track is None:
                    track = subscription.tracks[publisher] = Track()
                track.persist(seq)

    def is_settled(self, sub_id: str | None, publisher: str, seq: int | None) -> bool:
        """Tell whether an arriving message was settled before; count it if so."""
        with self._changed:
            subscription = self._subscription_of(sub_id, seq)
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

    def _subscription_of(
        self, sub_id: str | None, seq: int | None
    ) -> Subscription | None:
        """Return the open subscription with a sub id, or None.

        None for a message number that is invalid, too.
        """
        subscription = self._subscriptions.get(sub_id) if sub_id else None
        usable = seq is not None and 0 <= seq <= SEQ_LIMIT
        return subscription if usable else None

    def _has_to_wait(
        self, subscription: Subscription, publisher: str, seq: int
    ) -> bool:
        """Tell whether `received` waits with a message until others are settled.

        Raise Stopping if the position store is closed, Fenced if the subscription is
        fenced.
        """
        if self._closed:
            raise Stopping(self._closed)
        if subscription.is_fenced:
            raise Fenced(lost_subscription_callback.taken_over(subscription.sub_id))
        track = subscription.track(publisher)
        if track is None or not self._is_pressed(track, seq):
            return False
        self._trouble_log.log(
            f"The subscription {subscription.sub_id} waits: {len(track.in_flight)}"
            f" messages are unsettled, between {len(track.settled)} runs of settled"
            " ones. Settle the oldest."
        )
        return True

    def _is_pressed(self, track: Track, seq: int) -> bool:
        """Tell whether to wait with this message number until others are settled."""
        return track.is_pressed(seq, in_flight_limit=self._in_flight_limit)

    # Fences

    @property
    def fenced(self) -> frozenset[str]:
        """Return the ids of the fenced subscriptions.

        Another holder opened their positions, or a person moved these.
        """
        with self._changed:
            subscriptions = self._subscriptions.values()
            return frozenset(it.sub_id for it in subscriptions if it.is_fenced)

    def fence(self, fence: Fence) -> None:
        """Fence a subscription, as `on_fence` of the skip list reports.

        Without this, only the next write of its position notices. Ignore an old fence,
        and that of another client.
        """
        if fence.client_name != self._client_name:
            return
        with self._changed:
            subscription = self._subscriptions.get(fence.sub_id)
            if subscription is None or not subscription.is_older_than(fence):
                return
            subscription.is_fenced = True
            self._changed.notify_all()
        lost_subscription_callback.announce([subscription.sub_id], self._on_fenced)

    # Writing

    def flush(self) -> None:
        """Write all settled messages to the server, or raise why that failed.

        `Away`: they are kept, and writing is tried again. `Refused`: the same, but a
        person has to act. `Fenced`: they come again to the new holder.
        """
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the position store; raise like `flush`, but close always."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._changed:
                self._closed = "The bookmark store is closed: make another."
                self._changed.notify_all()
            self._thread.end()
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

    # Health

    def health(self) -> Health:
        """Return the state of this position store, for health pages and logs."""
        with self._changed:
            at = self._writer.written_at
            return health(
                list(self._subscriptions.values()),
                in_flight_limit=self._in_flight_limit,
                written_ago=None if at is None else time.monotonic() - at,
                trouble=self._writer.trouble,
                counts=self._counts,
            )

    def _leave_to_the_parent(self) -> None:
        """Close the position store in a forked child, which has no thread of it."""
        self._closed = "This process was forked off: make a store of its own."
        self._changed = Condition()  # a thread of the parent may hold the other one
        self._writer.reset_after_fork(self._changed)
        self._thread.reset_after_fork()


_STORES: WeakSet[BookmarkStore] = WeakSet()


def _leave_all_to_the_parent() -> None:
    """Close all position stores in a forked child."""
    for store in list(_STORES):
        store._leave_to_the_parent()  # noqa: SLF001 # ours


os.register_at_fork(after_in_child=_leave_all_to_the_parent)
