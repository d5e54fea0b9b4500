"""Operations as lists show them, and the offer to undo a drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q

from apps.core.text_cleaning import storable
from apps.dashboard.keyset_pagination import MAX_ID, ListCursor, ListPage, page
from apps.poison.states import (
    GIVEN_BACK,
    RedriveOutcome,
)
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.operation_querysets import OperationQuerySet
from apps.triage.operation_states import (
    UNFINISHED,
    ItemState,
    OperationGroup,
    OperationState,
    Verb,
)
from apps.triage.progress import ItemTally, all_counts, counts_of

MOST_LISTED = 200
LONGEST_SEARCH = 200
UNTOUCHED = "untouched"
ALWAYS_SHOWN = {
    Verb.REDRIVE: (
        ItemState.WAITING,
        RedriveOutcome.SENT,
        RedriveOutcome.CONFIRMED,
        RedriveOutcome.RECURRED,
    ),
    Verb.DROP: (ItemState.WAITING, ItemState.DROPPED),
    Verb.RESTORE: (ItemState.WAITING, ItemState.RESTORED),
    Verb.GIVE_BACK: (ItemState.WAITING, RedriveOutcome.MOVED),
    Verb.TRY_NOW: (ItemState.WAITING, ItemState.DUE),
    Verb.GIVE_UP: (ItemState.WAITING, ItemState.GIVEN_UP),
}


def label_in(label: str, operation: Operation) -> str:
    """Return the label of an item's standing, by the state of its operation.

    What waits in one that was cancelled is untouched: it will not be acted on.
    """
    is_cancelled = operation.state == OperationState.CANCELLED
    return UNTOUCHED if is_cancelled and label == ItemState.WAITING else label


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationStatus:
    """The progress of an operation, by the states of its items."""

    operation: Operation
    tally: ItemTally

    @property
    def is_running(self) -> bool:
        return self.operation.state in UNFINISHED

    @property
    def came_back(self) -> int:
        """Count the operation's messages that failed again after they were sent.

        0 for a give back: there, a message that is captured again is no failure.
        """
        return 0 if self._gives_back else self.tally.recurred

    @property
    def messages(self) -> int:
        """Count the messages that the operation will act on, or acted on."""
        return self.tally.acts_on if self.is_running else self.tally.acted

    @property
    def state(self) -> str:
        """Return the operation's state, as its pill names it.

        A done operation is "refused", "came back" or "skipped", all or in part, where
        its messages were.
        """
        tally = self.tally
        if self.operation.state != OperationState.DONE:
            return self.operation.state
        if tally.refused:
            return "partly refused" if tally.acted else "refused"
        if self.came_back:
            return (
                "all came back" if self.came_back == tally.acted else "some came back"
            )
        return (
            "all skipped" if tally.skipped and not tally.acted else OperationState.DONE
        )

    @property
    def also(self) -> str:
        """Say how many messages of a finished operation came back: "3 came back".

        Of a give back: "3 captured again". "" while it runs, or if none did.
        """
        if self.is_running or not self.tally.recurred:
            return ""
        what = GIVEN_BACK[RedriveOutcome.RECURRED] if self._gives_back else "came back"
        return f"{self.tally.recurred:,} {what}"

    @property
    def shown_counts(self) -> list[tuple[str, str, int]]:
        """List the operation's numbers of items by standing, with their labels.

        Some standings are listed even with 0.
        """
        always = ALWAYS_SHOWN[Verb(self.operation.verb)]
        return [
            (standing, self._label(standing), number)
            for standing, number in self.tally.counts.items()
            if number or standing in always
        ]

    @property
    def nonzero_counts(self) -> list[tuple[str, int]]:
        """Count the operation's items by label of their state, without those of 0."""
        pairs = self.tally.counts.items()
        return [(self._label(standing), number) for standing, number in pairs if number]

    def _label(self, standing: str) -> str:
        """Return the label of a standing in this operation."""
        given_back = GIVEN_BACK if self._gives_back else {}
        return label_in(given_back.get(standing, standing), self.operation)

    @property
    def _gives_back(self) -> bool:
        return self.operation.verb == Verb.GIVE_BACK


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationList:
    running: list[OperationStatus]
    finished: list[OperationStatus]
    page: ListPage[Operation]

    @property
    def rows(self) -> list[OperationStatus]:
        return [*self.running, *self.finished]


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoOffer:
    """A drop that has ended and can be undone, and how many messages it dropped."""

    operation: Operation
    dropped: int


def undo_offer(
    operation_id: int, principal: Principal, *, ended_after: datetime
) -> UndoOffer | None:
    """Return the offer to undo a drop operation, with the number of dropped messages.

    None if it is not visible, ended too long ago, was undone, or dropped none.
    """
    undos = Operation.objects.confirmed().filter(undo_of=OuterRef("pk"))
    drops = Operation.objects.visible_to(principal).filter(verb=Verb.DROP)
    ended = drops.filter(~Exists(undos), finished_at__gt=ended_after)
    operation = ended.filter(pk=operation_id).first()
    if operation is None:
        return None
    dropped = counts_of(operation)[ItemState.DROPPED]
    return UndoOffer(operation=operation, dropped=dropped) if dropped else None


def running(principal: Principal) -> list[Operation]:
    """List the unfinished operations that a principal sees, newest first."""
    unfinished = Operation.objects.visible_to(principal).unfinished()
    return list(unfinished.select_related("target_topic").recent_first()[:MOST_LISTED])


def find(
    cursor: ListCursor | None,
    principal: Principal,
    *,
    group: OperationGroup | None = None,
    text: str = "",
) -> OperationList:
    """List the running operations, then a page of finished ones, newest first.

    `text` is searched in the number, the actor, the reason and the query.
    """
    visible = _search(Operation.objects.visible_to(principal).in_group(group), text)
    # Running ones first: one that ends between the two queries is still listed.
    now_running = []
    if cursor is None:
        unfinished = visible.unfinished().select_related("target_topic")
        now_running = list(unfinished.recent_first()[:MOST_LISTED])
    running_ids = [operation.pk for operation in now_running]
    finished = visible.exclude(state__in=UNFINISHED).exclude(pk__in=running_ids)
    finished_page = page(
        finished.select_related("target_topic"), field="confirmed_at", cursor=cursor
    )
    rows = _rows([*now_running, *finished_page.rows])
    return OperationList(
        running=rows[: len(now_running)],
        finished=rows[len(now_running) :],
        page=finished_page,
    )


def _search(operations: OperationQuerySet, text: str) -> OperationQuerySet:
    """Keep operations with this number, or this text in actor, reason or query."""
    words = storable(text.strip())[:LONGEST_SEARCH]
    if not words:
        return operations
    number = words.removeprefix("#")
    if number.isascii() and number.isdigit() and int(number) <= MAX_ID:
        return operations.filter(pk=int(number))
    return operations.filter(
        Q(actor__icontains=words)
        | Q(reason__icontains=words)
        | Q(query__icontains=words)
    )


def latest(
    running: Sequence[Operation], principal: Principal, *, most: int
) -> list[OperationStatus]:
    """List rows of the running operations, then the newest others, for the overview."""
    newest = (
        Operation.objects.visible_to(principal)
        .select_related("target_topic")
        .recent_first()[:most]
    )
    ours = {operation.pk: operation for operation in [*running, *newest]}
    return _rows(list(ours.values())[:most])


def _rows(operations: list[Operation]) -> list[OperationStatus]:
    """Build a row for each operation, with its items counted by state."""
    counts = all_counts(operations)
    return [
        OperationStatus(
            operation=each, tally=ItemTally(total=each.total, counts=counts[each.pk])
        )
        for each in operations
    ]
