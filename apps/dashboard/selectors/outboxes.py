"""The data of the outbox pages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from apps.audit.models import Entry
from apps.brokers.models import Broker
from apps.core.errors import Absent, Refused, Unavailable
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.dashboard.selectors.name_filter import NameFilter
from apps.outbox import outbox_row_decisions
from apps.outbox.models import Outbox, OutboxError
from apps.outbox.outbox_row_decisions import ProducerRow, RowFilter
from apps.outbox.querysets import OutboxQuerySet
from apps.outbox.services.outbox_registration import hidden_topics
from apps.outbox.sweeper_state_for_pages import has_old_counts, state_of
from apps.poison.models import Poison, Problem
from apps.team.rights import Principal, Scope

PAGE_SIZE = 50
ROWS_SIZE = 50
MOST_NAMES = 200
MOST_SHOWN = 20
MOST_QUARANTINED = 5
# Rows with one reason and writer are one problem.
MOST_PROBLEMS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxLine:
    """An outbox in the list; `state` is the name of a pill."""

    outbox: Outbox
    state: str
    has_old_counts: bool
    error: OutboxError | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxList:
    rows: list[OutboxLine]
    next: str  # the name that the next page comes after; "" on the last page


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxPage:
    """What the page of an outbox shows, without its rows.

    `quarantined` are the messages of the rows that were quarantined last: their texts
    name the writers.
    """

    outbox: Outbox
    state: str
    has_old_counts: bool
    errors: list[OutboxError]
    entries: list[Entry]
    quarantined: list[Poison] | TooSlow


@dataclass(frozen=True, kw_only=True, slots=True)
class RowList:
    """Rows of an outbox; `trouble` says why they cannot be read.

    `next` is the row id that the next page comes before; None on the last page.
    """

    rows: list[ProducerRow]
    next: int | None = None
    trouble: str = ""


def find(filters: NameFilter, principal: Principal, *, now: datetime) -> OutboxList:
    """List a page of the outboxes that match the filter and are visible."""
    rows = filters.of(_visible(principal)).order_by("name")[: PAGE_SIZE + 1]
    outboxes = list(rows)
    first = outboxes[:PAGE_SIZE]
    latest = _latest_errors(first)
    return OutboxList(
        rows=[
            OutboxLine(
                outbox=each,
                state=state_of(each, now=now),
                has_old_counts=has_old_counts(each.activity, now=now),
                error=latest.get(each.pk),
            )
            for each in first
        ],
        next=first[-1].name if len(outboxes) > PAGE_SIZE else "",
    )


def one(outbox_id: int, principal: Principal, *, now: datetime) -> OutboxPage:
    """Load an outbox's page: state, errors, audit entries, quarantined rows.

    Raises Absent if the principal sees no such outbox.
    """
    outbox = visible(outbox_id, principal)
    entries = Entry.objects.filter(subject=f"outbox:{outbox.name}")
    errors = OutboxError.objects.filter(outbox=outbox).order_by("-last_at")
    return OutboxPage(
        outbox=outbox,
        state=state_of(outbox, now=now),
        has_old_counts=has_old_counts(outbox.activity, now=now),
        errors=list(errors[:MOST_SHOWN]),
        entries=list(entries.order_by("-seq")[:MOST_SHOWN]),
        quarantined=_quarantined(outbox, principal),
    )


def visible(outbox_id: int, principal: Principal) -> Outbox:
    """Find an outbox; raises Absent if the principal sees none with this id."""
    outbox = _visible(principal).filter(pk=outbox_id).first()
    if outbox is None:
        raise Absent(f"There is no outbox {outbox_id} here.")
    return outbox


def rows(outbox: Outbox, filters: RowFilter, principal: Principal) -> RowList:
    """List an outbox's rows from its producer's database.

    Where this is away or refuses, the list is empty and says why.
    """
    filters = replace(filters, hidden_topics=hidden_topics(outbox, principal))
    try:
        listed = outbox_row_decisions.find(outbox, filters, most=ROWS_SIZE + 1)
    except (Unavailable, Refused) as trouble:
        return RowList(rows=[], trouble=str(trouble))
    first = listed[:ROWS_SIZE]
    more = len(listed) > ROWS_SIZE
    return RowList(rows=first, next=first[-1].row_id if more else None)


def broker_names() -> list[str]:
    """List the first brokers' names, to choose an outbox's broker from."""
    names = Broker.objects.order_by("name").values_list("name", flat=True)
    return list(names[:MOST_NAMES])


def _visible(principal: Principal) -> OutboxQuerySet:
    outboxes = Outbox.objects.matching(principal.topics)
    return outboxes.select_related("topic", "broker", "activity")


def _quarantined(outbox: Outbox, principal: Principal) -> list[Poison] | TooSlow:
    """List the last quarantined outbox rows, as messages in our own database.

    The producer's database may be away. Their consumer group is the outbox.
    """
    if not principal.may(Scope.POISONS_READ):
        return []
    return unless_slow(partial(_messages_of, outbox.topic.name, principal))


def _messages_of(consumer_group: str, principal: Principal) -> list[Poison]:
    problems = Problem.objects.on_topics(principal.topics).recent_first()
    ids = problems.filter(consumer_group=consumer_group).values_list("pk", flat=True)
    poisons = Poison.objects.filter(problem__in=list(ids[:MOST_PROBLEMS]))
    return list(poisons.recent_first()[:MOST_QUARANTINED])


def _latest_errors(outboxes: list[Outbox]) -> dict[int, OutboxError]:
    """Map the ids of outboxes to their latest error; without those that had none."""
    errors = OutboxError.objects.filter(outbox__in=outboxes)
    latest = errors.order_by("outbox", "-last_at").distinct("outbox")
    return {each.outbox_id: each for each in latest}
