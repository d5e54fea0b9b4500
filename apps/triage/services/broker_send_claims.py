"""Claim the items of an operation that are sent next, and record the answers.

Where nothing is sent, because it acts in the database, there is nothing to claim.

A claim is one row: the window, with the number up to which its items may have been
handed to a broker. The claim of the next items is committed together with the answers
of those before. So after a kill at any instant, the items of one claim are in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from apps.brokers import adapter_contract
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.queryset_sql import pipeline, read_by_index
from apps.poison.models import ItemWindow
from apps.poison.querysets import WindowQuerySet
from apps.poison.services import operation_item_window_counts, sends
from apps.poison.services.operation_item_window_counts import Change
from apps.poison.services.sends import Send
from apps.poison.states import RedriveOutcome, WindowState
from apps.triage.item_kinds import DatabaseAct, kind_of
from apps.triage.models import Operation, SkippedItem
from apps.triage.operation_states import ItemState
from apps.triage.services import redrive_message_building
from apps.triage.services.fencing import Orders, fence
from apps.triage.services.pacing import at_once
from apps.triage.services.redrive_message_building import (
    OutboundMessage,
    ReadItems,
    to_send,
)

# As changes name it.
_WAITING = ""


class Windows:
    """The windows of one run, claimed in order."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.kind = kind_of(operation)
        self.unmarked = brokers.topics_without_headers()
        # As long as the connections to their brokers.
        self.topics: dict[int, Topic] = {}
        self.orders: Orders | None = None

    @property
    def rate(self) -> int | None:
        """Return the operation's rate that was last set, in messages a second."""
        return self.orders.rate if self.orders else self.operation.rate

    def require_fence(self) -> Orders:
        """Return the state and rate that people set for the operation.

        It reads them in the open transaction. Raises LockLost if a newer run started.
        """
        return self._fence()

    def all_done(self) -> bool:
        """Tell whether none of the operation's items may be sent any more."""
        return not self._unfinished().exists()

    @transaction.atomic
    def free_next_window(self, *, now: datetime) -> bool:
        """Free the held items of the first unfinished window of the operation.

        Returns False without such a window.
        """
        read_by_index()
        self._fence()
        window = self._unfinished().first()
        if window is None:
            return False
        self.kind.free(
            operation=self.operation.pk,
            first=window.first,
            end=window.first + window.items,
            now=now,
        )
        self._update(window.first, state=WindowState.DONE)
        return True

    # Acts in the database

    @transaction.atomic
    def act_next(self, act: DatabaseAct, *, most: int, now: datetime) -> bool:
        """Act on the first held items; False if none is left, or the run must stop.

        All is done when this transaction ends, so a dead run leaves nothing in doubt.
        """
        read_by_index()
        orders = self._fence()
        window = self._unfinished().first() if orders.may_go_on else None
        if window is None:
            return False
        end = window.first + window.items
        keys = self._next_keys(window.first, end, most=min(most, act.most))
        reasons = act.act(keys, now=now)
        self._skip(reasons)
        operation_item_window_counts.count_in_window(
            (self.operation.pk, window.first),
            [
                Change(
                    self.operation.pk,
                    number,
                    "",
                    ItemState.SKIPPED.value if number in reasons else act.standing,
                )
                for number in keys
            ],
        )
        acted_to = max(keys) + 1
        self.kind.free(
            operation=self.operation.pk, first=window.first, end=acted_to, now=now
        )
        self._update(window.first, sending_to=acted_to, run=self.operation.run)
        self._close(window.first, now=now)
        return True

    def _next_keys(self, first: int, end: int, *, most: int) -> dict[int, Any]:
        """Return a window's first held items, by number."""
        statement = self.kind.sql(
            "SELECT item, {key} FROM {holds}"
            " WHERE operation = %s AND item >= %s AND item < %s ORDER BY item LIMIT %s"
        )
        with connection.cursor() as cursor:
            cursor.execute(statement, [self.operation.pk, first, end, most])
            return dict(cursor.fetchall())

    def _skip(self, reasons: Mapping[int, str]) -> None:
        """Store the reasons why the operation skips items, by the items' numbers."""
        SkippedItem.objects.bulk_create(
            SkippedItem(operation=self.operation, number=number, reason=reason)
            for number, reason in reasons.items()
        )

    # What a dead run left

    @transaction.atomic
    def take_over(self, *, now: datetime) -> None:
        """Record as unknown the messages that an ended run was sending.

        That is the earlier run of this operation.
        """
        read_by_index()
        self._fence()
        for window in self._unfinished().filter(state=WindowState.SENDING):
            sends.record_unknown(
                operation=self.operation.pk,
                first=window.first,
                sending_to=window.sending_to,
                unmarked=self.unmarked,
                run=window.run,
                now=now,
            )
            self._update(window.first, state=WindowState.WAITING, sending=0)

    # Reading, while others are published

    def read(self, *, after: int, most: int, now: datetime) -> ReadItems:
        """Read the operation's first held items from number `after` on, of one window.

        There may be none.
        """
        return redrive_message_building.read(
            operation=self.operation.pk,
            first=after,
            size=self.operation.window_size,
            most=most,
            unmarked=self.unmarked,
            topics=self.topics,
            now=now,
        )

    # Claims and answers

    @transaction.atomic
    def claim(self, items: ReadItems) -> Sequence[OutboundMessage]:
        """Claim the operation's items before a broker gets them; return those to send.

        There are none where the operation was paused or cancelled.
        """
        return self._claim(items, self._fence())

    @transaction.atomic
    @pipeline()
    def record(
        self,
        messages: Sequence[OutboundMessage],
        outcomes: Sequence[adapter_contract.PublishOutcome],
        *,
        claimed_at: datetime,
        now: datetime,
        following: ReadItems,
    ) -> Sequence[OutboundMessage]:
        """Record brokers' answers to claimed items, and claim the items that follow.

        Returns those of the following items that are to be sent.
        """
        read_by_index()
        orders = self._fence()
        recorded, unsent = list[Send](), list[OutboundMessage]()
        for message, outcome in zip(messages, outcomes, strict=True):
            if redrive_message_building.is_unsent(message, outcome):
                unsent.append(message)
            else:
                recorded.append(
                    to_send(
                        message,
                        outcome,
                        operation=self.operation.pk,
                        claimed_at=claimed_at,
                    )
                )
        changes = sends.mark(sends=recorded, run=self.operation.run, now=now)
        changes += self._return_unsent(unsent)
        first = self._first_of(messages[0].item)
        operation_item_window_counts.count_in_window(
            (self.operation.pk, first), changes
        )
        # Not those that their consumer has answered although the broker has not.
        in_doubt = (_WAITING, RedriveOutcome.UNKNOWN.value)
        held_items = {change.item for change in changes if change.after in in_doubt}
        sends.free(
            operation=self.operation.pk,
            items=[each.item for each in messages if each.item not in held_items],
        )
        self._close(first, now=now)
        return self._claim(following, orders)

    def _return_unsent(self, unsent: Sequence[OutboundMessage]) -> list[Change]:
        """Let claimed messages wait again that no broker has; return the changes.

        Those that a cancel has given up as unknown meanwhile are open again. What was
        answered stays so.
        """
        keys = {(message.poison, message.n): message.item for message in unsent}
        unrecorded = sends.lock_unrecorded(keys)
        withdrawn = sends.withdraw_unknown(keys.keys() - unrecorded)
        before = dict.fromkeys(unrecorded, RedriveOutcome.SENDING.value)
        before |= dict.fromkeys(withdrawn, RedriveOutcome.UNKNOWN.value)
        return [
            Change(self.operation.pk, keys[key], standing, _WAITING)
            for key, standing in before.items()
        ]

    def _claim(self, items: ReadItems, orders: Orders) -> Sequence[OutboundMessage]:
        """Claim an operation's items in the open transaction; return those to send.

        Items that need no sending are freed.
        """
        self._free_undue(items)
        # They were read at the rate of before.
        messages = items.messages[: at_once(orders.rate)]
        if not messages or not orders.may_go_on:
            return ()
        self._update(
            self._first_of(messages[0].item),
            state=WindowState.SENDING,
            run=self.operation.run,
            sending=sum(not message.again for message in messages),
            sending_to=messages[-1].item + 1,
        )
        return messages

    def _free_undue(self, items: ReadItems) -> None:
        """Free an operation's items that were answered, or decided by others.

        The latter count as skipped.
        """
        self._skip(
            {
                number: f"meanwhile it became {state}"
                for number, state in items.decided.items()
            }
        )
        operation_item_window_counts.count(
            Change(self.operation.pk, number, "", "skipped") for number in items.decided
        )
        undue = [*items.answered, *items.decided]
        if undue:
            sends.free(operation=self.operation.pk, items=undue)
            for first in {self._first_of(number) for number in undue}:
                self._close(first, now=None)

    def _close(self, first: int, *, now: datetime | None) -> None:
        """Set an item window to wait for its other items, or to done without held ones.

        Nothing of the window is being sent any more.
        """
        end = first + self.operation.window_size
        with connection.cursor() as cursor:
            cursor.execute(
                self.kind.sql(
                    "UPDATE poison_window SET marked_at = coalesce(%s, marked_at),"
                    " sending = 0,"
                    " state = CASE WHEN EXISTS (SELECT FROM {holds}"
                    "   WHERE operation = %s AND item >= %s AND item < %s)"
                    " THEN 'waiting' ELSE 'done' END"
                    " WHERE operation = %s AND first = %s"
                ),
                [now, self.operation.pk, first, end, self.operation.pk, first],
            )

    def _first_of(self, number: int) -> int:
        """Return the first item's number in the operation's window with this item."""
        return number - number % self.operation.window_size

    def _fence(self) -> Orders:
        """Return the state and rate that people set for the operation.

        Raises LockLost if a newer run started.
        """
        self.orders = fence(operation=self.operation.pk, run=self.operation.run)
        return self.orders

    def _unfinished(self) -> WindowQuerySet:
        """Return the windows of which some item may still be sent, in order."""
        windows = ItemWindow.objects.filter(operation=self.operation.pk)
        return windows.unfinished().order_by("first")

    def _update(self, first: int, **values: object) -> None:
        """Change columns of the operation's window whose first item has this number."""
        ItemWindow.objects.filter(operation=self.operation.pk, first=first).update(
            **values
        )
