"""Open the subscriptions of a bookmark store at the server, and write to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from threading import Condition, Lock
from typing import Any

from poisonguard.errors import Away, Fenced, GuardError, Refused
from poisonguard.positions import lost_subscription_callback
from poisonguard.positions.position_api_calls import PositionCalls, Update
from poisonguard.positions.subscription_progress import Resume, Start, Subscription
from poisonguard.positions.trouble_log import TroubleLog

log = logging.getLogger(__name__)

UPDATES_LIMIT = 10_000  # what the server accepts in one request


class PositionWriter:
    """Call the server for all subscriptions of a store, one call at a time.

    `changed` guards the subscriptions; no call is made under it. `written_at` is the
    time of the last write, on the monotonic clock, `trouble` why the last one failed.
    """

    def __init__(
        self,
        calls: PositionCalls,
        subscriptions: dict[str, Subscription],
        *,
        changed: Condition,
        trouble_log: TroubleLog,
        on_fenced: Callable[[str], object] | None,
    ) -> None:
        self.written_at: float | None = None
        self.trouble: str | None = None
        self._calls = calls
        self._subscriptions = subscriptions
        self._trouble_log = trouble_log
        self._on_fenced = on_fenced
        self.reset_after_fork(changed)

    def reset_after_fork(self, changed: Condition) -> None:
        """Take new locks for the positions: a parent's thread may hold the others."""
        self._changed = changed
        self._calling = Lock()

    # Opening

    def open(self, sub_id: str, topic: str | None, start: Start) -> Resume:
        """Take a subscription over and return where it resumes."""
        with self._calling:
            return self._open(sub_id, topic, start)

    def resume(self, sub_id: str, topic: str | None, start: Start) -> Resume:
        """Return where a subscription resumes; open it first where that is needed."""
        resume = self._resume_if_open(sub_id)
        if resume is None:
            with self._calling:
                resume = self._resume_if_open(sub_id) or self._open(
                    sub_id, topic, start
                )
        return resume

    def _resume_if_open(self, sub_id: str) -> Resume | None:
        """Return where an open subscription resumes; None if it must be opened."""
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
        """Open a subscription at the server; merge what was received here before."""
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
                self._calls.client_name,
            )
        with self._changed:
            if subscription is None or subscription.epoch is not None:
                subscription = self._subscriptions[sub_id] = opened
            else:
                subscription.learn(opened)
            self._changed.notify_all()
            return subscription.resume

    # Writing

    def flush(self) -> None:
        """Write all changes of positions; raise the reason why that failed."""
        unopened = self.write()
        if self._has_unwritten():  # one request could not hold all
            unopened = self.write()
        if unopened is not None:
            raise unopened
        with self._changed:
            for subscription in self._subscriptions.values():
                if subscription.is_fenced:
                    raise Fenced(
                        lost_subscription_callback.taken_over(subscription.sub_id)
                    )
                if subscription.trouble is not None:
                    raise Refused(subscription.trouble)
                for publisher, track in subscription.restarts.items():
                    if subscription.is_kept and track.messages:
                        raise Refused(subscription.begun_again(publisher))

    def write(self) -> GuardError | None:
        """Open waiting subscriptions, then write changes of positions.

        One request holds the changes, up to its limit. Return the reason why a
        subscription could not be opened, or None; the others are written all the same.
        """
        try:
            with self._calling:
                unopened = self._open_waiting()
                fenced = self._write_changes()
        except GuardError as error:
            self.trouble = str(error)
            raise
        self.trouble = str(unopened) if unopened is not None else None
        # Without the lock: `on_fenced` may open the subscription again.
        lost_subscription_callback.announce(fenced, self._on_fenced)
        return unopened

    def _open_waiting(self) -> GuardError | None:
        """Open waiting subscriptions; return the first reason why one cannot be."""
        first: GuardError | None = None
        for waiting in self._list_waiting():
            try:
                self._open(waiting.sub_id, waiting.topic, waiting.start)
            except Away as away:  # the others would wait in vain, too
                return first or away
            except GuardError as error:
                first = first or error
        return first

    def _list_waiting(self) -> list[Subscription]:
        """List the subscriptions to be opened whose topic is known."""
        with self._changed:
            subscriptions = self._subscriptions.values()
            return [
                it for it in subscriptions if it.awaits_opening and it.topic is not None
            ]

    def _write_changes(self) -> list[str]:
        """Write position changes, up to the limit of one request.

        Return the sub ids of the subscriptions that turn out to be fenced.
        """
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
                fenced = [*map(self._apply_answer, updates, answers)]
                self._changed.notify_all()
        self.written_at = time.monotonic()
        return sorted({sub_id for sub_id in fenced if sub_id is not None})

    def _has_unwritten(self) -> bool:
        """Tell whether position changes are left that could be written."""
        with self._changed:
            writable = [
                it for it in self._subscriptions.values() if it.can_store_positions
            ]
            return any(t.unwritten for it in writable for t in it.tracks.values())

    def _take_updates(self) -> Iterator[Update]:
        """Take the unwritten position changes of each publisher, lazily."""
        return (
            Update(subscription=subscription, publisher=publisher, changes=changes)
            for subscription in self._subscriptions.values()
            if subscription.can_store_positions
            for publisher, track in subscription.tracks.items()
            if (changes := track.take_changes()) is not None
        )

    def _apply_answer(self, update: Update, answer: Mapping[str, Any]) -> str | None:
        """Apply the server's answer to a position update.

        Return the subscription's sub id if it is fenced from now on; None otherwise.
        """
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
            self._trouble_log.log(subscription.trouble)
        return None
