"""Freeze a selection as a preview: an operation with its items, in one statement.

A confirmed operation acts on exactly the previewed items: a message that arrives later
is never one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from django.db import connection, transaction
from django.db.models import Count

from apps.audit.services import REASON_LIMIT
from apps.brokers import topic_ids
from apps.brokers.models import Topic
from apps.brokers.ports import Ordering
from apps.brokers.services import topics as brokers
from apps.core.errors import Invalid, Refused
from apps.core.sql import statement_of
from apps.core.text import storable
from apps.core.timeouts import TooSlow, unless_slow
from apps.poison.models import Poison
from apps.poison.origins import MisroutedCount
from apps.poison.query import Query
from apps.poison.querysets import PoisonQuerySet
from apps.poison.states import silent_before
from apps.team.rights import Principal, Scope
from apps.triage.models import Item, Operation
from apps.triage.querysets import ItemQuerySet
from apps.triage.services import left_out_headers, misrouted
from apps.triage.states import SENDS, ItemState, Verb

PREVIEW_LIVES = timedelta(minutes=15)
# A worker takes the items of a larger selection; Confirm waits for it.
TAKEN_AT_ONCE = 20_000
MOST_IDS = 10_000
# Unconfirmed previews of one actor: each stores a copy of its selection.
MOST_PREVIEWS = 200
MOST_COUNTED = 10_001


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionRequest:
    """A requested verb and its poisons, chosen in exactly one of three ways.

    All that match a query, or some by their ids, or all that an operation dropped.
    `ordered`: send the messages of each topic one after the other, as captured.
    """

    verb: Verb
    query: Query | None = None
    ids: tuple[int, ...] = ()
    dropped_by: int | None = None
    target_topic: str | None = None
    ordered: bool = False

    def __post_init__(self) -> None:
        ways = [self.query is not None, bool(self.ids), self.dropped_by is not None]
        if sum(ways) != 1:
            raise Invalid("q", "give either a query or ids, and at least one id")
        if len(self.ids) > MOST_IDS:
            raise Invalid("ids", f"give at most {MOST_IDS} ids, or a query")
        if self.target_topic and self.verb.value not in SENDS:
            raise Invalid("target_topic", "only a redrive goes to another topic")
        if self.ordered and self.verb is not Verb.REDRIVE:
            raise Invalid("ordered", "only a redrive can keep an order")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How messages are sent: to another topic (None: to their own), and in order."""

    target_topic: str | None = None
    ordered: bool = False

    @classmethod
    def of(cls, operation: Operation) -> Self:
        """Return the route that an operation was previewed with."""
        topic = operation.target_topic
        name = None if topic is None else topic.name
        return cls(target_topic=name, ordered=operation.ordered)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewSummary:
    """A preview with its figures beside the total; counts are of items.

    `left_out` has the headers that will not be sent, `elsewhere` the messages that
    failed in another queue, among the first to be sent.
    """

    operation: Operation
    will_act: int
    skipped: tuple[tuple[str, int], ...]
    by_topic: tuple[tuple[str, int], ...]
    by_consumer: tuple[tuple[str, int], ...]
    sample: tuple[Poison, ...]
    newer: int
    left_out: tuple[tuple[str, int], ...] | TooSlow
    elsewhere: tuple[MisroutedCount, ...]


def preview(
    *,
    selection: SelectionRequest,
    principal: Principal,
    now: datetime,
    reason: str = "",
    at_once: int | None = None,
) -> Operation:
    """Freeze the requested selection as an operation that can be confirmed.

    A selection of more than `at_once` messages (TAKEN_AT_ONCE if left out) is returned
    with `taken` false: a worker must `take` it. `reason` is a draft, to be shown in the
    form that confirms. A preview never ends another one: it ends when it is confirmed,
    or after PREVIEW_LIVES. Raises Refused if the actor has MOST_PREVIEWS already.
    """
    principal.require(Scope.OPERATIONS_WRITE)
    _require_room(principal, now=now)
    target = _target_topic(selection, principal)
    poisons = _select_poisons(selection, principal.topics)
    if selection.ordered:
        _require_order(poisons, target)
    limit = TAKEN_AT_ONCE if at_once is None else at_once
    first = poisons.order_by().values("pk")[: limit + 1]
    is_large = first.count() > limit
    with transaction.atomic():
        operation = Operation.objects.create(
            verb=selection.verb.value,
            actor=str(principal.actor),
            source=principal.source,
            topics=list(principal.topics),
            query=None if selection.query is None else str(selection.query),
            target_topic=target,
            ordered=selection.ordered,
            undo_of_id=selection.dropped_by,
            reason=reason,
            created_at=now,
            expires_at=now + PREVIEW_LIVES,
        )
        operation = Operation.objects.get(pk=operation.pk)
        if not is_large:
            # Look topics up again: one may have been created before the snapshot.
            _insert_items(
                operation, _select_poisons(selection, principal.topics), now=now
            )
    return Operation.objects.get(pk=operation.pk)


@transaction.atomic
def take(*, operation_id: int, now: datetime) -> None:
    """Insert the items of a large preview, as of the moment of its request.

    Idempotent: a second worker finds the items taken.
    """
    previews = Operation.objects.select_for_update().previews()
    operation = previews.filter(pk=operation_id, taken=False).first()
    if operation is not None:
        selection = selection_of(operation)
        if selection is not None:
            _insert_items(
                operation, _select_poisons(selection, operation.topics), now=now
            )


def summarize(*, operation: Operation) -> PreviewSummary:
    """Count what a preview holds, and the messages that arrived since."""
    items = Item.objects.filter(operation=operation)
    waiting = items.waiting()
    return PreviewSummary(
        operation=operation,
        will_act=waiting.count(),
        skipped=skipped_by_reason(operation),
        by_topic=_count_by(waiting, "poison__topic__name"),
        by_consumer=_count_by(waiting, "poison__consumer_group"),
        sample=tuple(
            item.poison
            for item in waiting.select_related("poison__topic").order_by("id")[:3]
        ),
        newer=_count_newer(operation),
        left_out=unless_slow(partial(left_out_headers.count_left_out, operation)),
        elsewhere=misrouted.count_elsewhere(operation),
    )


def preview_again(
    *,
    operation: Operation,
    route: Route,
    reason: str,
    principal: Principal,
    now: datetime,
) -> Operation | None:
    """Preview the request of an operation again, by this route.

    Returns None if it had chosen only messages that do not exist.
    """
    selection = selection_of(operation)
    if selection is None:
        return None
    if selection.verb.value in SENDS:
        selection = replace(
            selection, target_topic=route.target_topic, ordered=route.ordered
        )
    draft = storable(reason)[:REASON_LIMIT]
    return preview(selection=selection, principal=principal, now=now, reason=draft)


def selection_of(operation: Operation) -> SelectionRequest | None:
    """Rebuild the request that an operation was previewed from.

    Returns None if it had chosen only messages that do not exist.
    """
    verb, target = Verb(operation.verb), operation.target_topic
    name = None if target is None else target.name
    if operation.undo_of_id is not None:
        return SelectionRequest(verb=verb, dropped_by=operation.undo_of_id)
    query = None if operation.query is None else Query.from_canonical(operation.query)
    poison_ids = operation.items.values_list("poison_id", flat=True)
    ids = tuple(poison_ids) if query is None else ()
    if query is None and not ids:
        return None
    return SelectionRequest(
        verb=verb, query=query, ids=ids, target_topic=name, ordered=operation.ordered
    )


def _target_topic(selection: SelectionRequest, principal: Principal) -> Topic | None:
    """Find the topic to send to, None for each its own; raise Invalid."""
    if not selection.target_topic:
        return None
    topics = Topic.objects.filter(name=selection.target_topic)
    topic = topics.select_related("broker").first()
    if topic is None or not principal.sees(topic.name):
        raise Invalid(
            "target_topic", f"there is no topic {selection.target_topic} here"
        )
    if topic.broker_id is None:
        raise Invalid("target_topic", f"the topic {topic.name} has no broker")
    return topic


def _require_order(poisons: PoisonQuerySet, target: Topic | None) -> None:
    """Raise Invalid if a topic that messages would be sent to keeps no order."""
    within = Topic.objects.filter(pk__in=poisons.order_by().values("topic"))
    topics = [target] if target else within.select_related("broker").order_by("name")
    for topic in topics:
        # The messages of a topic without a broker are refused one by one.
        if topic.broker_id and brokers.ordering_of(topic) is Ordering.NONE:
            raise Invalid(
                "ordered",
                f"the topic {topic.name} keeps no order: whatever is sent there may be "
                "handed out in any. Requeue without it.",
            )


def _require_room(principal: Principal, *, now: datetime) -> None:
    """Raise Refused if the principal has too many previews open."""
    previews = Operation.objects.previews().filter(actor=str(principal.actor))
    if previews.filter(expires_at__gt=now).count() >= MOST_PREVIEWS:
        minutes = PREVIEW_LIVES // timedelta(minutes=1)
        raise Refused(
            f"You have {MOST_PREVIEWS} previews open, the most there may be: "
            f"confirm one, or wait up to {minutes} minutes until one ends."
        )


# The reason to skip an item, or '' if the operation will act on it.
_SENT = """
        WHEN poison_poison.state = 'confirmed' THEN 'already handled'
        WHEN poison_poison.state = 'moved'
             AND poison_poison.moved_to_id = poison_poison.topic_id
        THEN 'given back: its dead-letter queue has it, a requeue makes a second copy'
        WHEN poison_poison.state = 'moved' THEN 'sent to another topic'
        WHEN poison_poison.state = 'redriving' OR poison_poison.state = 'redriven'
             AND poison_poison.sent_at >= %(silent_before)s
        THEN 'already sent, no answer yet'
"""
_REASONS = {
    Verb.REDRIVE: "WHEN poison_poison.state = 'dropped'"
    " THEN 'dropped: restore it first'" + _SENT,
    Verb.DROP: "WHEN poison_poison.state = 'dropped' THEN 'already dropped'" + _SENT,
    Verb.RESTORE: "WHEN poison_poison.state <> 'dropped' THEN 'not dropped'",
    Verb.GIVE_BACK: "WHEN poison_poison.state <> 'open'"
    " THEN 'not open: ' || poison_poison.state",
}

_BY_FAILURE = ("", "poison_poison.last_failed_at, poison_poison.id")
# The poisons of one captured batch share a time, and their ids are in no order.
_BY_CAPTURE = (
    "LEFT JOIN LATERAL (SELECT id FROM poison_failure"
    " WHERE poison_id = poison_poison.id AND is_first OFFSET 0) first ON true",
    "first.id, poison_poison.id",
)

# OFFSET 0 makes Postgres look up each holder by its poison. Otherwise the planner, with
# missing or old statistics, compares every poison with every held item.
_TAKE = """
INSERT INTO triage_item (operation_id, poison_id, state, reason, held)
SELECT %(operation)s, id, CASE reason WHEN '' THEN 'waiting' ELSE 'skipped' END,
       reason, false
FROM (
    SELECT poison_poison.id,
           CASE WHEN holder.operation_id IS NOT NULL
                THEN 'operation ' || holder.operation_id || ' has it'
                {reasons}
                ELSE '' END AS reason
    FROM poison_poison
    LEFT JOIN LATERAL (SELECT operation_id FROM triage_item
                       WHERE poison_id = poison_poison.id AND held OFFSET 0
    ) holder ON true
    {join}
    WHERE poison_poison.id IN ({poisons})
      AND pg_visible_in_snapshot(poison_poison.captured_xid, %(as_of)s::pg_snapshot)
    ORDER BY {order}
) judged
"""


def _insert_items(
    operation: Operation, poisons: PoisonQuerySet, *, now: datetime
) -> None:
    """Insert the items of a preview by one statement, and store their number."""
    inner, parameters = statement_of(poisons.order_by().values("pk"))
    inner_values = {f"p{index}": value for index, value in enumerate(parameters)}
    keeps_order = operation.ordered or operation.verb == Verb.GIVE_BACK
    join, order = _BY_CAPTURE if keeps_order else _BY_FAILURE
    statement = _TAKE.format(
        reasons=_REASONS[Verb(operation.verb)],
        join=join,
        order=order,
        poisons=inner % tuple(f"%({name})s" for name in inner_values),
    )
    values: dict[str, Any] = {
        "operation": operation.pk,
        "as_of": operation.as_of,
        "silent_before": silent_before(now),
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, {**values, **inner_values})
        total = cursor.rowcount
    Operation.objects.filter(pk=operation.pk).update(taken=True, total=total)


_SKIP_DECIDED = """
UPDATE triage_item SET state = 'skipped', reason = judged.reason
FROM triage_item waiting, LATERAL (
    SELECT CASE {reasons} ELSE '' END AS reason FROM poison_poison
    WHERE id = waiting.poison_id OFFSET 0
) judged
WHERE waiting.operation_id = %(operation)s AND waiting.state = 'waiting'
  AND triage_item.id = waiting.id AND judged.reason <> ''
"""


def skip_what_was_decided_since(operation: Operation, *, now: datetime) -> None:
    """Skip the items on which the operation can no longer act, with the reason."""
    statement = _SKIP_DECIDED.format(reasons=_REASONS[Verb(operation.verb)])
    values: dict[str, Any] = {
        "operation": operation.pk,
        "silent_before": silent_before(now),
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def _select_poisons(
    selection: SelectionRequest, topics: Sequence[str]
) -> PoisonQuerySet:
    """Select the messages that a request means, within these topics."""
    allowed = Poison.objects.on_topics(topics)
    if selection.verb is Verb.GIVE_BACK:
        # By exact name: in a query, a star in the name would match any text.
        allowed = allowed.filter(topic_ids.named(selection.target_topic or ""))
    if selection.query is not None:
        return allowed.matching(selection.query)
    if selection.dropped_by is not None:
        dropped = Item.objects.filter(
            operation_id=selection.dropped_by, state=ItemState.DROPPED
        )
        return allowed.filter(pk__in=dropped.values("poison_id"))
    return allowed.filter(pk__in=selection.ids)


def skipped_by_reason(operation: Operation) -> tuple[tuple[str, int], ...]:
    """Count the skipped items by reason, the most frequent reason first."""
    return _count_by(operation.items.exclude(reason=""), "reason")


def _count_by(items: ItemQuerySet, field: str) -> tuple[tuple[str, int], ...]:
    """Count items by a field, the most frequent value first."""
    rows = items.order_by().values_list(field).annotate(number=Count("pk"))
    return tuple(rows.order_by("-number", field))


def _count_newer(operation: Operation) -> int:
    """Count the messages that match now but were captured after the preview."""
    if operation.query is None:
        return 0
    allowed = Poison.objects.on_topics(operation.topics)
    matching = allowed.matching(Query.from_canonical(operation.query))
    newer = matching.captured_after(operation.as_of)
    return newer.order_by().values("pk")[:MOST_COUNTED].count()
