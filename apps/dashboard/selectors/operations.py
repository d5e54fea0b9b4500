"""The data of the pages of operations and previews."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Case, Count, Q, Value, When

from apps.brokers.models import Topic
from apps.brokers.ports import Ordering
from apps.brokers.services import topics as brokers
from apps.core.errors import Absent, Unavailable
from apps.core.timeouts import TooSlow, unless_slow
from apps.dashboard.paging import ListCursor, ListPage, page
from apps.dashboard.selectors import skips
from apps.dashboard.selectors.skips import Swallowed
from apps.poison.models import Poison
from apps.poison.query import Query, Term
from apps.poison.states import (
    DISPLAY_STATES,
    GIVEN_BACK,
    PoisonState,
    RedriveOutcome,
)
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.models import Item, Operation
from apps.triage.progress import ItemTally, Pace, progress_of
from apps.triage.querysets import ItemQuerySet
from apps.triage.services import previews, upkeep
from apps.triage.services.previews import PreviewSummary, SelectionRequest
from apps.triage.states import UNFINISHED, ItemState, OperationState, Verb
from poisonguard.contract import uuid_of

MOST_LISTED = 200
MOST_UNDONE = 10
MOST_COPIED = 50
# A list counts at most this many items in all; the page of an operation counts all.
MOST_ITEMS = 100_000
# To drop more than this, a person must type the number.
MANY = 1_000
AGES = (
    ("under an hour", timedelta(hours=1)),
    ("under a day", timedelta(days=1)),
    ("under a week", timedelta(days=7)),
)
OLDER = "a week and more"
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
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewDetail:
    operation: Operation
    summary: PreviewSummary
    breakdown: list[tuple[str, list[tuple[str, int]]]]
    targets: list[str]
    swallowed: Swallowed | TooSlow | None
    may_order: bool = False

    @property
    def api_body(self) -> dict[str, object]:
        """Return the body of the same API call; with a bounded number of ids."""
        body: dict[str, object] = {"verb": self.operation.verb}
        if self.operation.query is not None:
            body["q"] = self.operation.query
        else:
            chosen = self.operation.items.values_list("poison_id", flat=True)
            body["ids"] = list(chosen.order_by("pk")[:MOST_COPIED])
        if self.operation.target_topic:
            body["target_topic"] = self.operation.target_topic.name
        if self.operation.ordered:
            body["ordered"] = True
        return body

    @property
    def must_type(self) -> bool:
        """Return whether to type the number of messages: for a large drop."""
        return self.operation.verb == Verb.DROP and self.summary.will_act > MANY

    @property
    def must_say_why(self) -> bool:
        """Return whether a reason is required: for a drop."""
        return self.operation.verb == Verb.DROP


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
        """Count the messages that failed again after they were sent."""
        return 0 if self._gives_back else self.tally.recurred

    @property
    def messages(self) -> int:
        """Count the messages that it will act on, or, once finished, acted on."""
        return self.tally.acts_on if self.is_running else self.tally.acted

    @property
    def state(self) -> str:
        """Return the state for the pill; failures and recurrences are no success."""
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
        """Return what the state alone would hide: how many came back."""
        if self.is_running or not self.tally.recurred:
            return ""
        what = GIVEN_BACK[RedriveOutcome.RECURRED] if self._gives_back else "came back"
        return f"{self.tally.recurred:,} {what}"

    @property
    def shown_counts(self) -> list[tuple[str, int]]:
        """Return the items by state: those above 0, and those always shown."""
        always = ALWAYS_SHOWN[Verb(self.operation.verb)]
        return self._with_labels(
            (state, number)
            for state, number in self.tally.counts.items()
            if number or state in always
        )

    @property
    def nonzero_counts(self) -> list[tuple[str, int]]:
        """Return the items by state, those above 0."""
        return self._with_labels(pair for pair in self.tally.counts.items() if pair[1])

    @property
    def _gives_back(self) -> bool:
        return self.operation.verb == Verb.GIVE_BACK

    def _with_labels(self, counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Replace states by the labels of this verb."""
        labels = GIVEN_BACK if self._gives_back else {}
        return [(labels.get(state, state), number) for state, number in counts]


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedOperation:
    """A row of a list; without a status where there are too many items to count."""

    operation: Operation
    status: OperationStatus | None

    @property
    def state(self) -> str:
        return self.status.state if self.status else self.operation.state

    @property
    def also(self) -> str:
        """Return what the state alone would hide; "" where it was not counted."""
        return self.status.also if self.status else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationList:
    running: list[ListedOperation]
    finished: list[ListedOperation]
    page: ListPage[Operation]

    @property
    def rows(self) -> list[ListedOperation]:
        return [*self.running, *self.finished]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(OperationStatus):
    silent: int
    pace: Pace
    undoable: int
    undone_by: list[Operation]
    given_back_to: str
    exceptions: list[Item]
    worker_missing_for: timedelta | None

    @property
    def exceptional(self) -> int:
        """Count the items that were refused or skipped."""
        return self.tally.refused + self.tally.skipped

    @property
    def seconds_left(self) -> int | None:
        """Estimate the remaining time from the rate so far, once there is one."""
        remaining = self.pace.remaining
        return None if remaining is None else round(remaining.total_seconds())


def running(principal: Principal) -> list[Operation]:
    """List the unfinished operations that a principal sees, newest first."""
    unfinished = Operation.objects.visible_to(principal).unfinished()
    return list(unfinished.select_related("target_topic").recent_first()[:MOST_LISTED])


def find(cursor: ListCursor | None, principal: Principal) -> OperationList:
    """List the running operations, then a page of finished ones, newest first."""
    # Running ones first: one that ends between the two queries is still listed.
    now_running = running(principal) if cursor is None else []
    running_ids = [operation.pk for operation in now_running]
    finished = (
        Operation.objects.visible_to(principal)
        .exclude(state__in=UNFINISHED)
        .exclude(pk__in=running_ids)
    )
    finished_page = page(
        finished.select_related("target_topic"), field="confirmed_at", cursor=cursor
    )
    rows = _rows([*now_running, *finished_page.rows])
    return OperationList(
        running=rows[: len(now_running)],
        finished=rows[len(now_running) :],
        page=finished_page,
    )


def latest(principal: Principal, *, most: int) -> list[ListedOperation]:
    """Return the running and the newest operations, for the overview."""
    newest = (
        Operation.objects.visible_to(principal)
        .select_related("target_topic")
        .recent_first()[:most]
    )
    ours = {operation.pk: operation for operation in [*running(principal), *newest]}
    return _rows(list(ours.values())[:most])


def _rows(operations: list[Operation]) -> list[ListedOperation]:
    """Build the rows of operations, each with its status where that is counted."""
    counts = Item.objects.counts_of(_countable(operations))
    return [
        ListedOperation(operation=each, status=_status(each, counts.get(each.pk)))
        for each in operations
    ]


def _status(
    operation: Operation, counts: dict[str, int] | None
) -> OperationStatus | None:
    """Return the status of an operation; None without counts."""
    if counts is None:
        return None
    tally = ItemTally(total=operation.total, counts=counts)
    return OperationStatus(operation=operation, tally=tally)


def _countable(operations: Iterable[Operation]) -> Iterator[int]:
    """Yield the first operations, as many as a list has time to count."""
    remaining = MOST_ITEMS
    for operation in operations:
        if operation.total <= remaining:
            remaining -= operation.total
            yield operation.pk


def preview(token: str, principal: Principal, *, now: datetime) -> PreviewDetail:
    """Find a preview that this principal made; raises Stale otherwise."""
    previews = Operation.objects.filter(token=_uuid(token), actor=str(principal.actor))
    operation = previews.select_related("target_topic").first()
    if operation is None:
        raise Stale("This preview is gone: make a new one.", new_preview=None)
    return previewed(operation, principal, now=now)


def previewed(
    operation: Operation, principal: Principal, *, now: datetime
) -> PreviewDetail:
    """Load all that the page of a preview shows."""
    summary = previews.summarize(operation=operation)
    return PreviewDetail(
        operation=operation,
        summary=summary,
        breakdown=[
            ("topic", list(summary.by_topic)),
            ("consumer", list(summary.by_consumer)),
            ("state", _by_state(operation)),
            ("age", _by_age(operation, now=now)),
        ],
        targets=_target_topics(principal) if operation.verb == Verb.REDRIVE else [],
        swallowed=_swallowed(operation, now=now),
        may_order=operation.verb == Verb.REDRIVE and _keep_order(operation, summary),
    )


def _keep_order(operation: Operation, summary: PreviewSummary) -> bool:
    """Check that every target topic keeps some order."""
    target = operation.target_topic
    names = [target.name] if target else [name for name, _ in summary.by_topic]
    topics = Topic.objects.filter(name__in=names).exclude(broker=None)
    topic_list = list(topics.select_related("broker"))
    try:
        keep = [brokers.ordering_of(topic) is not Ordering.NONE for topic in topic_list]
    except Unavailable:
        return False  # the client of a broker is missing: nothing can be sent there
    return bool(keep) and all(keep)


def _swallowed(operation: Operation, *, now: datetime) -> Swallowed | TooSlow | None:
    """Find messages that a skip would match again; None where nothing is sent."""
    if operation.verb != Verb.REDRIVE:
        return None
    waiting = Item.objects.filter(operation=operation).waiting()
    poisons = Poison.objects.filter(pk__in=waiting.values("poison_id"))
    count = partial(skips.swallowed, poisons, operation.target_topic, now=now)
    return unless_slow(count)


def _uuid(text: str) -> uuid.UUID:
    """Parse the token of a preview; raises Absent."""
    token = uuid_of(text)
    if token is None:
        raise Absent("This is no preview's token.")
    return token


def _target_topics(principal: Principal) -> list[str]:
    """List the topics that a redrive can be sent to."""
    names = Topic.objects.exclude(broker=None).values_list("name", flat=True)
    return [name for name in names.order_by("name") if principal.sees(name)]


def _by_state(operation: Operation) -> list[tuple[str, int]]:
    """Count the items of a preview by the state of their messages."""
    waiting = Item.objects.filter(operation=operation).waiting().order_by()
    rows = waiting.values_list("poison__state").annotate(number=Count("pk"))
    numbers: dict[str, int] = {}
    for state, number in rows:
        shown_state = DISPLAY_STATES[PoisonState(state)].value
        numbers[shown_state] = numbers.get(shown_state, 0) + number
    return sorted(numbers.items(), key=lambda pair: -pair[1])


def _by_age(operation: Operation, *, now: datetime) -> list[tuple[str, int]]:
    """Count the items of a preview by the time since their last failure."""
    younger = [
        When(poison__last_failed_at__gt=now - age, then=Value(title))
        for title, age in AGES
    ]
    waiting = Item.objects.filter(operation=operation).waiting().order_by()
    aged = waiting.annotate(age=Case(*younger, default=Value(OLDER)))
    numbers = dict(aged.values_list("age").annotate(number=Count("pk")))
    titles = (*(title for title, _ in AGES), OLDER)
    return [(title, numbers[title]) for title in titles if title in numbers]


def progress(operation_id: int, principal: Principal, *, now: datetime) -> Progress:
    """Load a confirmed operation; raises Absent if it is not visible."""
    current = progress_of(operation_id=operation_id, principal=principal, now=now)
    operation = current.operation
    items = Item.objects.filter(operation=operation)
    undos = Operation.objects.visible_to(principal).filter(undo_of=operation)
    return Progress(
        operation=operation,
        tally=current.tally,
        silent=current.silent,
        pace=current.pace,
        undoable=_undoable_count(operation, items),
        undone_by=list(undos.order_by("pk")[:MOST_UNDONE]),
        given_back_to=operation.given_back_to,
        exceptions=_exceptions(items, principal),
        worker_missing_for=upkeep.worker_missing_for(now=now),
    )


def _undoable_count(operation: Operation, items: ItemQuerySet) -> int:
    """Count the items that an undo would restore; 0 unless a drop."""
    if operation.verb != Verb.DROP:
        return 0
    return items.filter(
        state=ItemState.DROPPED, poison__state=PoisonState.DROPPED
    ).count()


def _exceptions(items: ItemQuerySet, principal: Principal) -> list[Item]:
    """List the first refused and skipped items whose topics are visible."""
    exceptional_states = (RedriveOutcome.REFUSED, ItemState.SKIPPED)
    exceptional = items.filter(
        Q(state__in=exceptional_states) | Q(redrive__outcome__in=exceptional_states)
    )
    first = exceptional.select_related("poison__topic", "redrive").order_by("id")[
        :MOST_LISTED
    ]
    return [item for item in first if principal.sees(item.poison.topic.name)]


def selection_of_problems(
    verb: Verb, *, query: Query, problems: tuple[int, ...]
) -> SelectionRequest:
    """Build the selection of these problems, narrowed by the query of their list."""
    numbers = ",".join(str(number) for number in problems)
    return SelectionRequest(
        verb=verb, query=Query((*query.terms, Term("problem", numbers)))
    )
