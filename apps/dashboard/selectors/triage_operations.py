"""The data of the pages of operations and previews."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypedDict

from django.db.models import Exists, OuterRef, Q

from apps.brokers.adapter_contract import Ordering
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.capture.models import Lane, LaneState
from apps.core.errors import Absent, Unavailable
from apps.core.statement_timeouts import TOO_SLOW, TooSlow, unless_slow
from apps.core.text_cleaning import storable
from apps.dashboard.keyset_pagination import MAX_ID, ListCursor, ListPage, page
from apps.dashboard.presentation.outcome_chart import OutcomeChart, outcome_chart
from apps.dashboard.selectors import message_skips
from apps.dashboard.selectors.message_skips import Swallowed
from apps.dashboard.selectors.problem_ranking import MOST_PROBLEMS, visible_topic_ids
from apps.poison import backlogs
from apps.poison.models import ItemWindow, Redrive
from apps.poison.query_language import Query, Term
from apps.poison.states import (
    GIVEN_BACK,
    PoisonState,
    RedriveOutcome,
)
from apps.redelivery.models import Delivery, DeliveryItem
from apps.redelivery.services import delivery_items
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.item_standings import ItemStanding, standings_of
from apps.triage.models import Item, Operation
from apps.triage.outcomes_over_time import outcomes_over_time
from apps.triage.preview_breakdown import ItemBreakdown, Largest
from apps.triage.progress import ItemTally, Pace, all_counts, counts_of, progress_of
from apps.triage.querysets import OperationQuerySet
from apps.triage.ramps import Ramp
from apps.triage.services import orphaned_operations_and_pruning, previews
from apps.triage.services.earlier_layout import convert_preview
from apps.triage.services.operation_redirects import names_of, targets_of
from apps.triage.services.previews import PreviewSummary, SelectionRequest
from apps.triage.states import (
    EXPLAINED,
    NEXT,
    SENDS,
    UNDO_WINDOW,
    UNFINISHED,
    ItemState,
    OperationState,
    Verb,
)
from poisonguard.contract import uuid_of

MOST_LISTED = 200
MOST_UNDONE = 10
# They may be in as many windows, which are read then.
MOST_EXCEPTIONS = 50
# Messages whose states are looked up for a page.
MOST_LOOKED_UP = 100_000
MOST_COPIED = 50
MOST_SAMPLES = 3
LONGEST_SEARCH = 200
# To drop or give up more than this, a person must type the number.
MANY = 1_000
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewDetail:
    operation: Operation
    summary: PreviewSummary
    breakdown: list[tuple[str, Largest]]
    targets: list[str]
    swallowed: Swallowed | TooSlow | None
    may_order: bool = False
    confirms: bool | TooSlow = False
    brokers_away: tuple[str, ...] = ()
    deliveries: tuple[Delivery, ...] = ()

    @property
    def seconds(self) -> int | None:
        """Return how long sending takes at the chosen rate, at least; None without."""
        rate = self.operation.rate
        return rate and -(-self.summary.will_act // rate)

    @property
    def common(self) -> list[tuple[str, str]]:
        """Return what all its messages have in common: title and value."""
        return [
            (title, largest.values[0][0])
            for title, largest in self.breakdown
            if largest.is_one_group
        ]

    @property
    def divided(self) -> list[tuple[str, Largest]]:
        """Return the breakdowns that have several groups."""
        return [each for each in self.breakdown if not each[1].is_one_group]

    @property
    def api_body(self) -> dict[str, object]:
        """Return the body of the same API call; with a bounded number of ids."""
        body: dict[str, object] = {"verb": self.operation.verb}
        if not self.operation.is_about_poisons:
            body["deliveries"] = delivery_items.filter_of(self.operation)
        elif self.operation.query is not None:
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
        """Return whether to type the number of items: for a large drop or give up."""
        return self.must_say_why and self.summary.will_act > MANY

    @property
    def undo_days(self) -> int:
        """Return for how many days a drop can be undone after its end."""
        return UNDO_WINDOW.days

    @property
    def must_say_why(self) -> bool:
        """Return whether a reason is required: for a drop or a give up."""
        return self.operation.verb in EXPLAINED


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
    def shown_counts(self) -> list[tuple[str, str, int]]:
        """Return standing, label and number: those above 0, and those always shown."""
        always = ALWAYS_SHOWN[Verb(self.operation.verb)]
        labels = GIVEN_BACK if self._gives_back else {}
        return [
            (standing, labels.get(standing, standing), number)
            for standing, number in self.tally.counts.items()
            if number or standing in always
        ]

    @property
    def nonzero_counts(self) -> list[tuple[str, int]]:
        """Return the items by state, those above 0."""
        labels = GIVEN_BACK if self._gives_back else {}
        pairs = self.tally.counts.items()
        return [(labels.get(state, state), number) for state, number in pairs if number]

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
class AffectedProblem:
    """The one problem whose messages an operation acts on, and how many are open."""

    id: int
    open: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(OperationStatus):
    silent: int
    pace: Pace
    undoable: int | TooSlow
    is_undo_over: bool
    undone_by: list[Operation]
    given_back_to: str
    redirects: Mapping[str, str]
    exceptions: list[ItemStanding]
    worker_missing_for: timedelta | None
    problem: AffectedProblem | None
    next_problem: int | None
    outcomes: OutcomeChart | TooSlow | None

    @property
    def sends(self) -> bool:
        """Tell whether it sends messages, so that it has a rate."""
        return self.operation.verb in SENDS

    @property
    def holds(self) -> bool:
        """Tell whether it first takes hold of its items: no other can act on them."""
        return self.sends or not self.operation.is_about_poisons

    @property
    def is_taking_hold(self) -> bool:
        """Tell whether it still decides which messages it can act on."""
        operation = self.operation
        is_at_work = operation.state in {OperationState.QUEUED, OperationState.RUNNING}
        return is_at_work and operation.judged < operation.total

    @property
    def may_pause(self) -> bool:
        return OperationState.PAUSED in NEXT[OperationState(self.operation.state)]

    @property
    def may_resume(self) -> bool:
        return self.operation.state == OperationState.PAUSED

    @property
    def may_cancel(self) -> bool:
        return OperationState.CANCELLING in NEXT[OperationState(self.operation.state)]

    @property
    def worst(self) -> str:
        """Say the worst of a finished operation; "" if nothing went wrong."""
        if self.is_running:
            return ""
        acted = self.tally.acted
        if self.came_back:
            return f"{self.came_back:,} of {acted:,} came back."
        if self.tally.refused:
            return f"{self.tally.refused:,} of {self.tally.acts_on:,} were refused."
        if unknown := self.tally.counts[RedriveOutcome.UNKNOWN]:
            return f"{unknown:,} are unknown: they may have been sent."
        return f"{self.silent:,} of {acted:,} are silent." if self.silent else ""

    @property
    def retried(self) -> list[tuple[str, str, int]]:
        """Return which messages can be tried again: name, label and number."""
        if self.is_running or self.operation.verb != Verb.REDRIVE:
            return []
        numbers = (
            ("refused", "refused", self.tally.refused),
            ("recurred", "came back", self.came_back),
            ("silent", "silent", self.silent),
        )
        return [each for each in numbers if each[2]]

    @property
    def ramp(self) -> str:
        """Describe the ramp in words; "" without one."""
        if not self.operation.ramp:
            return ""
        ramp = Ramp.from_json(self.operation.ramp)
        steps = ", ".join(f"{step:,}" for step in ramp.steps)
        asks = (
            f"{ramp.confirmed} % are confirmed within {ramp.wait} s"
            if ramp.confirmed is not None
            else f"none came back within {ramp.wait} s"
        )
        return f"{steps}, then five times as many; each step only if {asks}"

    @property
    def exceptional(self) -> int:
        """Count the items that were refused or skipped."""
        return self.tally.refused + self.tally.skipped

    @property
    def seconds_left(self) -> int | None:
        """Estimate the remaining time from the rate so far, once there is one."""
        remaining = self.pace.remaining
        return None if remaining is None else round(remaining.total_seconds())


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoOffer:
    """A drop that has ended and can be undone, and how many messages it dropped."""

    operation: Operation
    dropped: int


def undo_offer(
    operation_id: int, principal: Principal, *, ended_after: datetime
) -> UndoOffer | None:
    """Return a drop that ended after a moment, dropped something, was not undone."""
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


class Tab(StrEnum):
    """Which operations the list shows; NEEDS_YOU: a person should look at them."""

    ALL = ""
    RUNNING = "running"
    NEEDS_YOU = "needs-you"
    DONE = "done"


def find(
    cursor: ListCursor | None,
    principal: Principal,
    *,
    tab: Tab = Tab.ALL,
    text: str = "",
) -> OperationList:
    """List the running operations, then a page of finished ones, newest first.

    `text` is searched in the number, the actor, the reason and the query.
    """
    visible = _search(Operation.objects.visible_to(principal), text)
    if tab is Tab.NEEDS_YOU:
        visible = visible.filter(_needs_you())
    # Running ones first: one that ends between the two queries is still listed.
    now_running = []
    if cursor is None and tab is not Tab.DONE:
        unfinished = visible.unfinished().select_related("target_topic")
        now_running = list(unfinished.recent_first()[:MOST_LISTED])
    running_ids = [operation.pk for operation in now_running]
    finished = visible.exclude(state__in=UNFINISHED).exclude(pk__in=running_ids)
    if tab is Tab.RUNNING:
        finished = finished.none()
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


def _needs_you() -> Q:
    """Match operations that are paused or wait, or of which messages came back."""
    troubled = ItemWindow.objects.filter(operation=OuterRef("pk")).filter(
        Q(refused__gt=0) | Q(recurred__gt=0) | Q(unknown__gt=0)
    )
    waits = Q(state__in=UNFINISHED) & ~Q(trouble="")
    return Q(state=OperationState.PAUSED) | waits | Q(Exists(troubled))


def latest(
    running: Sequence[Operation], principal: Principal, *, most: int
) -> list[OperationStatus]:
    """Return these running and the newest operations, for the overview."""
    newest = (
        Operation.objects.visible_to(principal)
        .select_related("target_topic")
        .recent_first()[:most]
    )
    ours = {operation.pk: operation for operation in [*running, *newest]}
    return _rows(list(ours.values())[:most])


def _rows(operations: list[Operation]) -> list[OperationStatus]:
    """Build the rows of operations, each with its status where that is counted."""
    counts = all_counts(operations)
    return [
        OperationStatus(
            operation=each, tally=ItemTally(total=each.total, counts=counts[each.pk])
        )
        for each in operations
    ]


def preview(token: str, principal: Principal, *, now: datetime) -> PreviewDetail:
    """Find a preview that this principal made; raises Stale otherwise."""
    previews = Operation.objects.filter(token=_uuid(token), actor=str(principal.actor))
    operation = previews.select_related("target_topic").first()
    if operation is None:
        raise Stale("This preview is gone: make a new one.", new_preview=None)
    return previewed(convert_preview(operation), principal, now=now)


def previewed(
    operation: Operation, principal: Principal, *, now: datetime
) -> PreviewDetail:
    """Load all that the page of a preview shows."""
    summary = previews.summarize(operation=operation)
    if not operation.is_about_poisons:
        return PreviewDetail(
            operation=operation,
            summary=summary,
            breakdown=list(summary.breakdown.groups),
            targets=[],
            swallowed=None,
            deliveries=_first_deliveries(operation),
        )
    topics = _topics_of(operation, summary.breakdown)
    return PreviewDetail(
        operation=operation,
        summary=summary,
        breakdown=[
            ("topic", summary.topics),
            ("consumer", summary.breakdown.consumers),
            ("state", summary.breakdown.states),
            ("age", summary.breakdown.ages),
        ],
        targets=_target_topics(principal) if operation.verb == Verb.REDRIVE else [],
        swallowed=_swallowed(operation, topics, now=now),
        confirms=operation.verb == Verb.REDRIVE and _have_confirmed(topics),
        brokers_away=_brokers_away(operation, topics, now=now),
        may_order=operation.verb == Verb.REDRIVE and _keep_order(operation, summary),
    )


def _first_deliveries(operation: Operation) -> tuple[Delivery, ...]:
    """Load some deliveries that it will act on."""
    skipped = operation.skipped.filter(number=OuterRef("number"))
    items = DeliveryItem.objects.filter(~Exists(skipped), operation=operation)
    first = list(
        items.order_by("number").values_list("delivery", flat=True)[:MOST_SAMPLES]
    )
    rows = Delivery.objects.filter(pk__in=first).select_related("endpoint")
    return tuple(rows.order_by("pk"))


def _topics_of(operation: Operation, breakdown: ItemBreakdown) -> list[int]:
    """List the ids of the topics of its messages; of too many, all it may act on."""
    if breakdown.topic_ids is not None:
        return list(breakdown.topic_ids)
    allowed = Topic.objects.matching(operation.topics)
    return list(allowed.values_list("pk", flat=True))


def _brokers_away(
    operation: Operation, topics: list[int], *, now: datetime
) -> tuple[str, ...]:
    """Name the brokers that it would send to, and that their lanes cannot reach."""
    if operation.verb not in SENDS:
        return ()
    lanes = Lane.objects.filter(topic__in=targets_of(operation, topics))
    away = lanes.filter(state=LaneState.AWAY).select_related("topic__broker")
    return tuple(
        sorted(
            {
                lane.topic.broker.name
                for lane in away
                if lane.topic.broker and lane.is_heard(now)
            }
        )
    )


def _have_confirmed(topics: list[int]) -> bool | TooSlow:
    """Find whether consumers of the topics have ever confirmed a redrive."""
    confirmed = Redrive.objects.filter(confirmed_at__isnull=False, topic__in=topics)
    return unless_slow(confirmed.exists)


def _keep_order(operation: Operation, summary: PreviewSummary) -> bool:
    """Check that every target topic keeps some order."""
    target = operation.target_topic
    own = [summary.redirects.get(name, name) for name, _ in summary.by_topic]
    names = [target.name] if target else own
    topics = Topic.objects.filter(name__in=names).exclude(broker=None)
    topic_list = list(topics.select_related("broker"))
    try:
        keep = [brokers.ordering_of(topic) is not Ordering.NONE for topic in topic_list]
    except Unavailable:
        return False  # the client of a broker is missing: nothing can be sent there
    return bool(keep) and all(keep)


def _swallowed(
    operation: Operation, topics: list[int], *, now: datetime
) -> Swallowed | TooSlow | None:
    """Find messages that a skip would match again; None where nothing is sent."""
    if operation.verb != Verb.REDRIVE:
        return None
    target = operation.target_topic_id
    count = partial(
        message_skips.swallowed,
        partial(_last_items, operation),
        operation.target_topic,
        topics=topics if target is None else [target],
        now=now,
    )
    return unless_slow(count)


def _last_items(operation: Operation, most: int) -> list[int]:
    """List the poisons of the last items that it acts on: those that failed last."""
    acted_on = operation.items.not_skipped().order_by("-number")
    return list(acted_on.values_list("poison_id", flat=True)[:most])


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


def progress(operation_id: int, principal: Principal, *, now: datetime) -> Progress:
    """Load a confirmed operation; raises Absent if it is not visible."""
    current = progress_of(operation_id=operation_id, principal=principal, now=now)
    operation = current.operation
    undos = Operation.objects.visible_to(principal).filter(undo_of=operation)
    return Progress(
        operation=operation,
        tally=current.tally,
        silent=current.silent,
        pace=current.pace,
        undoable=_undoable_count(operation, current.tally, now=now),
        is_undo_over=_is_undo_over(operation, now=now),
        undone_by=list(undos.order_by("pk")[:MOST_UNDONE]),
        given_back_to=operation.given_back_to,
        redirects=names_of(operation),
        exceptions=_exceptions(operation, principal),
        outcomes=_outcomes(operation, now=now),
        worker_missing_for=orphaned_operations_and_pruning.worker_missing_for(now=now),
        **_problems_of(operation, principal),
    )


def _outcomes(operation: Operation, *, now: datetime) -> OutcomeChart | TooSlow | None:
    """Chart the outcomes of an operation over time; None unless it sends messages."""
    if operation.verb not in SENDS:
        return None
    return unless_slow(partial(_outcome_chart, operation, now=now))


def _outcome_chart(operation: Operation, *, now: datetime) -> OutcomeChart | None:
    """Chart what became of the sent messages by time; None if none was sent."""
    outcomes = outcomes_over_time(operation, now=now)
    if outcomes is None:
        return None
    return outcome_chart(outcomes, gives_back=operation.verb == Verb.GIVE_BACK)


class _ProblemLinks(TypedDict):
    problem: AffectedProblem | None
    next_problem: int | None


def _problems_of(operation: Operation, principal: Principal) -> _ProblemLinks:
    """Find the problem that an operation was about, and the next one with open ones."""
    text = operation.query if operation.is_about_poisons else None
    number = Query.from_canonical(text or "").value_of("problem") or ""
    if not number.isdigit():
        return {"problem": None, "next_problem": None}
    topics, problem = visible_topic_ids(principal), int(number)
    latest = backlogs.open_by_problem(topics=topics, problems=MOST_PROBLEMS).problems
    others = (each.problem for each in latest if each.open and each.problem != problem)
    return {
        "problem": AffectedProblem(
            id=problem, open=backlogs.open_number(topics=topics, problem=problem)
        ),
        "next_problem": next(others, None),
    }


def _is_undo_over(operation: Operation, *, now: datetime) -> bool:
    """Tell whether the time in which this drop could be undone is over."""
    return operation.undo_ends_at is not None and operation.undo_ends_at <= now


def _undoable_count(
    operation: Operation, tally: ItemTally, *, now: datetime
) -> int | TooSlow:
    """Count the items that an undo would restore; 0 where none is possible.

    Usually the counts of windows tell it. Where messages may have been restored, or
    dropped again, by others, their states are looked at, unless they are very many.
    """
    if operation.undo_ends_at is None or operation.undo_ends_at <= now:
        return 0
    dropped = tally.counts[ItemState.DROPPED]
    since = Operation.objects.confirmed().exclude(pk=operation.pk)
    since = since.filter(confirmed_at__gte=operation.confirmed_at)
    restores = list(since.filter(verb=Verb.RESTORE).order_by("confirmed_at")[:2])
    if not restores or not dropped:
        return dropped
    undo = restores[0]
    again = since.filter(verb=Verb.DROP, confirmed_at__gte=undo.confirmed_at)
    is_by_undo = len(restores) == 1 and undo.undo_of_id == operation.pk
    if is_by_undo and not again.exists():
        return dropped - all_counts([undo])[undo.pk][ItemState.RESTORED]
    if dropped > MOST_LOOKED_UP:
        return TOO_SLOW
    still = Item.objects.acted_on(operation.pk)
    return unless_slow(still.filter(poison__state=PoisonState.DROPPED).count)


def _exceptions(operation: Operation, principal: Principal) -> list[ItemStanding]:
    """List the first refused and skipped items whose topics are visible."""
    exceptional = standings_of(
        operation,
        standings=[RedriveOutcome.REFUSED, ItemState.SKIPPED],
        limit=MOST_EXCEPTIONS,
    )
    return [item for item in exceptional if principal.sees(item.topic)]


def selection_of_problems(
    verb: Verb, *, query: Query, problems: tuple[int, ...]
) -> SelectionRequest:
    """Build the selection of these problems, narrowed by the query of their list."""
    numbers = ",".join(str(number) for number in problems)
    return SelectionRequest(
        verb=verb, query=Query((*query.terms, Term("problem", numbers)))
    )
