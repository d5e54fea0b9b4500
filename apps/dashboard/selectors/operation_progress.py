"""The data of the page of one operation: what became of each message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypedDict

from apps.core.statement_timeouts import TOO_SLOW, TooSlow, unless_slow
from apps.dashboard.presentation.outcome_chart import OutcomeChart, outcome_chart
from apps.dashboard.selectors.problem_ranking import MOST_PROBLEMS, visible_topic_ids
from apps.dashboard.selectors.skips import UnansweredMatches
from apps.dashboard.selectors.triage_operations import OperationStatus
from apps.poison import poison_counts_by_state
from apps.poison.query_language import Query
from apps.poison.states import (
    PoisonState,
    RedriveOutcome,
)
from apps.team.rights import Principal
from apps.triage.item_standings import ItemStanding, standings_of
from apps.triage.models import Acknowledgement, Item, Operation
from apps.triage.operation_states import (
    NEXT,
    SENDS,
    SILENT,
    ItemState,
    OperationState,
    Verb,
)
from apps.triage.outcomes_over_time import outcomes_over_time
from apps.triage.progress import ItemTally, Pace, all_counts, progress_of
from apps.triage.ramps import Ramp
from apps.triage.services import (
    orphaned_operations_and_expired_rows,
    requeues_in_vain,
)
from apps.triage.services.operation_redirects import names_of

MOST_UNDONE = 10
# They may be in as many windows, which are read then.
MOST_EXCEPTIONS = 50
# Messages whose states are looked up for a page.
MOST_LOOKED_UP = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class AffectedProblem:
    """The one problem whose messages an operation acts on, and how many are open."""

    id: int
    open: int


class WorstOutcome(NamedTuple):
    """The worst that became of an operation's messages: a standing, and a sentence."""

    standing: str
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(OperationStatus):
    silent: int
    is_long_over: bool
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
    unanswered: UnansweredMatches | TooSlow

    @property
    def sends(self) -> bool:
        """Tell whether the operation sends messages, so that it has a rate."""
        return self.operation.verb in SENDS

    @property
    def holds(self) -> bool:
        """Tell whether an operation of this verb holds its items against others."""
        return self.sends or not self.operation.is_about_poisons

    @property
    def is_taking_hold(self) -> bool:
        """Tell whether the operation still decides which messages it can act on."""
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
    def may_resume_without_ramp(self) -> bool:
        return self.may_resume and self.operation.ramp is not None

    @property
    def may_cancel(self) -> bool:
        return OperationState.CANCELLING in NEXT[OperationState(self.operation.state)]

    @property
    def acknowledged(self) -> Acknowledgement | None:
        """Return a person's acknowledgement of all that is in trouble, if there is."""
        acknowledgement: Acknowledgement | None = getattr(
            self.operation, "acknowledgement", None
        )
        if acknowledgement and acknowledgement.covers(self.tally.counts):
            return acknowledgement
        return None

    @property
    def may_acknowledge(self) -> bool:
        is_troubled = bool(self.tally.troubled)
        return is_troubled and not self.is_running and not self.acknowledged

    @property
    def worst(self) -> WorstOutcome | None:
        """Say how many messages came back, were refused, are unknown or silent.

        Only the worst of these is named. Returns None where no message had such an
        outcome, and while the operation runs.
        """
        if self.is_running:
            return None
        acted, total = self.tally.acted, self.tally.acts_on
        unknown = self.tally.counts[RedriveOutcome.UNKNOWN]
        handed_over = acted + unknown
        in_doubt = 0 if self.is_long_over else unknown
        ranked = (
            ("recurred", self.came_back, f"of {acted:,} came back."),
            ("refused", self.tally.refused, f"of {total:,} were refused."),
            ("unknown", in_doubt, "are unknown: they may have been sent."),
            (SILENT, self.silent, f"of {handed_over:,} are silent."),
        )
        named = (
            WorstOutcome(standing, f"{number:,} {rest}")
            for standing, number, rest in ranked
            if number
        )
        return next(named, None)

    @property
    def counts_to_retry(self) -> list[tuple[str, str, int]]:
        """Count the messages that a retry of a finished redrive may send, by standing.

        Returns standing, label and number; nothing for a running operation.
        """
        if self.is_running or self.operation.verb != Verb.REDRIVE:
            return []
        numbers = (
            ("refused", "refused", self.tally.refused),
            ("recurred", "came back", self.came_back),
            (SILENT, "silent", self.silent),
        )
        return [each for each in numbers if each[2]]

    @property
    def ramp(self) -> str:
        """Describe the operation's ramp in words; "" without one."""
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
        """Count the operation's items that were refused or skipped."""
        return self.tally.refused + self.tally.skipped

    @property
    def seconds_left(self) -> int | None:
        """Return the estimated seconds that are left, or None."""
        remaining = self.pace.remaining
        return None if remaining is None else round(remaining.total_seconds())


def progress(operation_id: int, principal: Principal, *, now: datetime) -> Progress:
    """Load a confirmed operation's progress; raises Absent if it is not visible."""
    current = progress_of(operation_id=operation_id, principal=principal, now=now)
    operation = current.operation
    undos = Operation.objects.visible_to(principal).filter(undo_of=operation)
    return Progress(
        operation=operation,
        tally=current.tally,
        silent=current.silent,
        is_long_over=operation.is_long_over(now),
        pace=current.pace,
        undoable=_undoable_count(operation, current.tally, now=now),
        is_undo_over=_is_undo_over(operation, now=now),
        undone_by=list(undos.order_by("pk")[:MOST_UNDONE]),
        given_back_to=operation.given_back_to,
        redirects=names_of(operation),
        exceptions=_exceptions(operation, principal),
        outcomes=_outcomes(operation, now=now),
        unanswered=_unanswered_matches(operation, current.tally, now=now),
        worker_missing_for=orphaned_operations_and_expired_rows.worker_missing_for(
            now=now
        ),
        **_problems_of(operation, principal),
    )


def _unanswered_matches(
    operation: Operation, tally: ItemTally, *, now: datetime
) -> UnansweredMatches | TooSlow:
    """Count by skip the messages without an answer that active rules match."""
    matches = requeues_in_vain.of_operation(operation, tally, now=now)
    if isinstance(matches, TooSlow):
        return matches
    return UnansweredMatches.of(matches, now=now)


def _outcomes(operation: Operation, *, now: datetime) -> OutcomeChart | TooSlow | None:
    """Chart an operation's outcomes over time; None unless it sends messages."""
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
    """Return the problem that an operation's query names, and the next open one.

    Both are None where the query names no single problem.
    """
    text = operation.query if operation.is_about_poisons else None
    number = Query.from_canonical(text or "").value_of("problem") or ""
    if not number.isdigit():
        return {"problem": None, "next_problem": None}
    topics, problem = visible_topic_ids(principal), int(number)
    latest = poison_counts_by_state.open_by_problem(
        topics=topics, problems=MOST_PROBLEMS
    ).problems
    others = (each.problem for each in latest if each.open and each.problem != problem)
    return {
        "problem": AffectedProblem(
            id=problem,
            open=poison_counts_by_state.open_number(topics=topics, problem=problem),
        ),
        "next_problem": next(others, None),
    }


def _is_undo_over(operation: Operation, *, now: datetime) -> bool:
    """Tell whether the time to undo a drop operation is over."""
    return operation.undo_ends_at is not None and operation.undo_ends_at <= now


def _undoable_count(
    operation: Operation, tally: ItemTally, *, now: datetime
) -> int | TooSlow:
    """Count the messages of a drop that an undo would restore; 0 if it cannot.

    The counts of the operation's windows tell it, unless another operation may have
    restored or dropped some of its messages since: then their states are counted.
    TooSlow if they are too many.
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
    """List an operation's first visible items that were refused or skipped."""
    exceptional = standings_of(
        operation,
        standings=[RedriveOutcome.REFUSED, ItemState.SKIPPED],
        limit=MOST_EXCEPTIONS,
    )
    return [item for item in exceptional if principal.sees(item.topic)]
