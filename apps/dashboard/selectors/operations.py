"""Operations and their previews as their pages show them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Case, Count, Q, Value, When
from django.db.models.functions import Coalesce

from apps.brokers.models import Topic
from apps.brokers.ports import Ordering
from apps.brokers.services import topics as brokers
from apps.core.errors import Absent, Unavailable
from apps.core.timeouts import TooSlow, unless_slow
from apps.dashboard.paging import Cursor, Page, page
from apps.dashboard.selectors import skips
from apps.dashboard.selectors.skips import Swallowed
from apps.poison.models import Poison
from apps.poison.query import Query, Term
from apps.poison.states import (
    GIVEN_BACK,
    SHOWN,
    SILENT_AFTER_SECONDS,
    Outcome,
    State,
)
from apps.team.rights import Principal
from apps.triage.errors import Stale
from apps.triage.models import Item, Operation
from apps.triage.progress import ItemTally
from apps.triage.querysets import ItemQuerySet, OperationQuerySet
from apps.triage.services import selection, upkeep
from apps.triage.services.selection import Ask, PreviewSummary
from apps.triage.states import COUNTED, UNFINISHED, ItemState, Verb
from apps.triage.states import State as Decided

MOST_LISTED = 200
MOST_UNDONE = 10
MOST_COPIED = 50
# A list counts the items of its operations up to so many in all; a page counts its own.
MOST_ITEMS = 100_000
# A drop of more than this needs its number typed.
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
        Outcome.SENT,
        Outcome.CONFIRMED,
        Outcome.RECURRED,
    ),
    Verb.DROP: (ItemState.WAITING, ItemState.DROPPED),
    Verb.RESTORE: (ItemState.WAITING, ItemState.RESTORED),
    Verb.GIVE_BACK: (ItemState.WAITING, Outcome.MOVED),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewDetail:
    operation: Operation
    seen: PreviewSummary
    breakdown: list[tuple[str, list[tuple[str, int]]]]
    targets: list[str]
    swallowed: Swallowed | TooSlow | None
    may_order: bool = False

    @property
    def as_asked(self) -> dict[str, object]:
        """Say the same to the API; ids only as far as a person would copy them."""
        asked: dict[str, object] = {"verb": self.operation.verb}
        if self.operation.query is not None:
            asked["q"] = self.operation.query
        else:
            chosen = self.operation.items.values_list("poison_id", flat=True)
            asked["ids"] = list(chosen.order_by("pk")[:MOST_COPIED])
        if self.operation.target_topic:
            asked["target_topic"] = self.operation.target_topic.name
        if self.operation.ordered:
            asked["ordered"] = True
        return asked

    @property
    def must_type(self) -> bool:
        return self.operation.verb == Verb.DROP and self.seen.will_act > MANY

    @property
    def must_say_why(self) -> bool:
        return self.operation.verb == Verb.DROP


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How far an operation has come, by what became of its items."""

    operation: Operation
    counts: dict[str, int]

    @property
    def tally(self) -> ItemTally:
        return ItemTally(total=self.operation.total, counts=self.counts)

    @property
    def is_running(self) -> bool:
        return self.operation.state in UNFINISHED

    @property
    def came_back(self) -> int:
        return 0 if self._gives_back else self.tally.recurred

    @property
    def messages(self) -> int:
        """Count the messages that it is to act on; once it is over, those it did."""
        return self.tally.acts_on if self.is_running else self.tally.acted

    @property
    def word(self) -> str:
        """Name the state for its pill; what failed or came back was no success."""
        tally = self.tally
        if self.operation.state != Decided.DONE:
            return self.operation.state
        if tally.refused:
            return "partly refused" if tally.acted else "refused"
        if self.came_back:
            return (
                "all came back" if self.came_back == tally.acted else "some came back"
            )
        return "all skipped" if tally.skipped and not tally.acted else Decided.DONE

    @property
    def also(self) -> str:
        """Say what the state alone would hide."""
        if self.is_running or not self.tally.recurred:
            return ""
        what = GIVEN_BACK[Outcome.RECURRED] if self._gives_back else "came back"
        return f"{self.tally.recurred:,} {what}"

    @property
    def shown_counts(self) -> list[tuple[str, int]]:
        always = ALWAYS_SHOWN[Verb(self.operation.verb)]
        return self._named(
            (word, number)
            for word, number in self.counts.items()
            if number or word in always
        )

    @property
    def told_counts(self) -> list[tuple[str, int]]:
        return self._named(pair for pair in self.counts.items() if pair[1])

    @property
    def _gives_back(self) -> bool:
        return self.operation.verb == Verb.GIVE_BACK

    def _named(self, counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        words = GIVEN_BACK if self._gives_back else {}
        return [(words.get(word, word), number) for word, number in counts]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationRow:
    """One of many: without its standing where there are too many items to count."""

    operation: Operation
    standing: Standing | None

    @property
    def word(self) -> str:
        return self.standing.word if self.standing else self.operation.state

    @property
    def also(self) -> str:
        return self.standing.also if self.standing else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationList:
    running: list[OperationRow]
    finished: list[OperationRow]
    page: Page[Operation]

    @property
    def rows(self) -> list[OperationRow]:
        return [*self.running, *self.finished]


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Standing):
    silent: int
    undoable: int
    undone_by: list[Operation]
    given_back_to: str
    exceptions: list[Item]
    worker_missing_for: timedelta | None
    now: datetime

    @property
    def exceptional(self) -> int:
        return self.tally.refused + self.tally.skipped

    @property
    def seconds_left(self) -> int | None:
        """Guess from the pace so far, once there is one."""
        began, tally = self.operation.confirmed_at, self.tally
        if not (self.is_running and began and tally.finished):
            return None
        elapsed = (self.now - began).total_seconds()
        return round(elapsed / tally.finished * (tally.acts_on - tally.finished))


def running(principal: Principal) -> list[Operation]:
    unfinished = _visible(principal).unfinished()
    return list(unfinished.select_related("target_topic").recent_first()[:MOST_LISTED])


def find(cursor: Cursor | None, principal: Principal) -> OperationList:
    """List the finished ones by page, the newest first; before them all that run."""
    # In this order: one that ends between the two questions is still in the list.
    now_running = running(principal) if cursor is None else []
    seen = [operation.pk for operation in now_running]
    finished = _visible(principal).exclude(state__in=UNFINISHED).exclude(pk__in=seen)
    shown = page(
        finished.select_related("target_topic"), field="confirmed_at", cursor=cursor
    )
    rows = _rows([*now_running, *shown.rows])
    return OperationList(
        running=rows[: len(now_running)], finished=rows[len(now_running) :], page=shown
    )


def latest(principal: Principal, *, most: int) -> list[OperationRow]:
    """Give what runs, and what was decided last, for a page that is not about them."""
    newest = _visible(principal).select_related("target_topic").recent_first()[:most]
    ours = {operation.pk: operation for operation in [*running(principal), *newest]}
    return _rows(list(ours.values())[:most])


def _visible(principal: Principal) -> OperationQuerySet:
    """Keep what was decided under this principal's own topics, or fewer of them."""
    confirmed = Operation.objects.confirmed()
    if principal.sees_every_topic:
        return confirmed
    return confirmed.filter(topics__contained_by=list(principal.topics))


def _rows(operations: list[Operation]) -> list[OperationRow]:
    counts = _counts(_countable(operations))
    return [
        OperationRow(
            operation=operation,
            standing=Standing(operation=operation, counts=counts[operation.pk])
            if operation.pk in counts
            else None,
        )
        for operation in operations
    ]


def _countable(operations: Iterable[Operation]) -> Iterator[int]:
    """Give as many as a list has time to count; the first ones come first."""
    left = MOST_ITEMS
    for operation in operations:
        if operation.total <= left:
            left -= operation.total
            yield operation.pk


def _counts(operations: Iterable[int]) -> dict[int, dict[str, int]]:
    counts = {pk: dict.fromkeys(COUNTED, 0) for pk in operations}
    items = Item.objects.filter(operation__in=counts).order_by()
    # One that is claimed, and no other, has a redrive; its outcome is what it is.
    standing = items.annotate(word=Coalesce("redrive__outcome", "state"))
    found = standing.values_list("operation", "word").annotate(number=Count("pk"))
    for operation, word, number in found:
        counts[operation][word] = number
    return counts


def preview(token: str, principal: Principal, *, now: datetime) -> PreviewDetail:
    """Find a preview of this principal's own; raises Stale otherwise."""
    found = Operation.objects.filter(token=_uuid(token), actor=str(principal.actor))
    operation = found.select_related("target_topic").first()
    if operation is None:
        raise Stale("This preview is gone: make a new one.", new_preview=None)
    return previewed(operation, principal, now=now)


def previewed(
    operation: Operation, principal: Principal, *, now: datetime
) -> PreviewDetail:
    seen = selection.summarize(operation=operation)
    return PreviewDetail(
        operation=operation,
        seen=seen,
        breakdown=[
            ("topic", list(seen.by_topic)),
            ("consumer", list(seen.by_consumer)),
            ("state", _by_state(operation)),
            ("age", _by_age(operation, now=now)),
        ],
        targets=_targets(principal) if operation.verb == Verb.REDRIVE else [],
        swallowed=_swallowed(operation, now=now),
        may_order=operation.verb == Verb.REDRIVE and _keep_order(operation, seen),
    )


def _keep_order(operation: Operation, seen: PreviewSummary) -> bool:
    """Tell whether every topic that would be sent to keeps some order."""
    target = operation.target_topic
    names = [target.name] if target else [name for name, _ in seen.by_topic]
    topics = Topic.objects.filter(name__in=names).exclude(broker=None)
    found = list(topics.select_related("broker"))
    try:
        keep = [brokers.ordering_of(topic) is not Ordering.NONE for topic in found]
    except Unavailable:
        return False  # a client is missing: nothing can be sent there at all
    return bool(keep) and all(keep)


def _swallowed(operation: Operation, *, now: datetime) -> Swallowed | TooSlow | None:
    """Find what would be skipped again; None where nothing is sent."""
    if operation.verb != Verb.REDRIVE:
        return None
    waiting = Item.objects.filter(operation=operation).waiting()
    sent = Poison.objects.filter(pk__in=waiting.values("poison_id"))
    ask = partial(skips.swallowed, sent, operation.target_topic, now=now)
    return unless_slow(ask)


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise Absent("This is no preview's token.") from None


def _targets(principal: Principal) -> list[str]:
    names = Topic.objects.exclude(broker=None).values_list("name", flat=True)
    return [name for name in names.order_by("name") if principal.sees(name)]


def _by_state(operation: Operation) -> list[tuple[str, int]]:
    waiting = Item.objects.filter(operation=operation).waiting().order_by()
    found = waiting.values_list("poison__state").annotate(number=Count("pk"))
    numbers: dict[str, int] = {}
    for state, number in found:
        word = SHOWN[State(state)].value
        numbers[word] = numbers.get(word, 0) + number
    return sorted(numbers.items(), key=lambda pair: -pair[1])


def _by_age(operation: Operation, *, now: datetime) -> list[tuple[str, int]]:
    younger = [
        When(poison__last_failed_at__gt=now - age, then=Value(title))
        for title, age in AGES
    ]
    waiting = Item.objects.filter(operation=operation).waiting().order_by()
    aged = waiting.annotate(age=Case(*younger, default=Value(OLDER)))
    found = dict(aged.values_list("age").annotate(number=Count("pk")))
    titles = (*(title for title, _ in AGES), OLDER)
    return [(title, found[title]) for title in titles if title in found]


def progress(operation_id: int, principal: Principal, *, now: datetime) -> Progress:
    """Find a confirmed operation; raises Absent when there is none."""
    visible = _visible(principal).select_related("target_topic")
    operation = visible.filter(pk=operation_id).first()
    if operation is None:
        raise Absent(f"There is no operation {operation_id} here.")
    items = Item.objects.filter(operation=operation)
    return Progress(
        operation=operation,
        counts=items.counts(),
        silent=_silent(items, now=now).count(),
        undoable=_undoable(operation, items),
        undone_by=list(visible.filter(undo_of=operation).order_by("pk")[:MOST_UNDONE]),
        given_back_to=operation.given_back_to,
        exceptions=_exceptions(items, principal),
        worker_missing_for=upkeep.worker_missing_for(now=now),
        now=now,
    )


def _silent(items: ItemQuerySet, *, now: datetime) -> ItemQuerySet:
    limit = now - timedelta(seconds=SILENT_AFTER_SECONDS)
    return items.filter(redrive__outcome=Outcome.SENT, redrive__sent_at__lt=limit)


def _undoable(operation: Operation, items: ItemQuerySet) -> int:
    if operation.verb != Verb.DROP:
        return 0
    return items.filter(state=ItemState.DROPPED, poison__state=State.DROPPED).count()


def _exceptions(items: ItemQuerySet, principal: Principal) -> list[Item]:
    standing = (Outcome.REFUSED, ItemState.SKIPPED)
    found = items.filter(Q(state__in=standing) | Q(redrive__outcome__in=standing))
    shown = found.select_related("poison__topic", "redrive").order_by("id")[
        :MOST_LISTED
    ]
    return [item for item in shown if principal.sees(item.poison.topic.name)]


def ask_of_problems(verb: Verb, *, query: Query, problems: tuple[int, ...]) -> Ask:
    """Ask for what matches in these problems, as their list was showing it."""
    numbers = ",".join(str(number) for number in problems)
    return Ask(verb=verb, query=Query((*query.terms, Term("problem", numbers))))
