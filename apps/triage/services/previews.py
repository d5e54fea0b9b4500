"""Freeze a selection as a preview: an operation with its items, in one statement.

A confirmed operation acts on exactly the previewed items: one that arrives later is
never among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self

from django.db import connection, transaction
from django.db.models import Max, QuerySet

from apps.audit.services import REASON_LIMIT
from apps.brokers import senders_of_topics_without_broker
from apps.brokers.adapter_contract import Ordering
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.errors import Absent, Invalid, Refused
from apps.core.queryset_sql import statement_of
from apps.core.statement_timeouts import TOO_SLOW, TooSlow
from apps.core.text_cleaning import storable
from apps.poison.models import Poison
from apps.poison.origin_queue_mismatch import MisroutedCount
from apps.poison.query_language import Query
from apps.team.rights import Principal, Scope
from apps.triage.item_kinds import kind_named, kind_of
from apps.triage.models import Item, Operation
from apps.triage.operation_states import (
    LAYOUT_OF,
    PACED,
    SENDS,
    VERBS,
    ItemKindName,
    Verb,
)
from apps.triage.preview_breakdown import ItemBreakdown, Largest, Shares
from apps.triage.ramps import Ramp
from apps.triage.services import operation_redirects, redrive_to_other_queue_count
from apps.triage.services.earlier_layout_conversion import require_converted
from apps.triage.services.pacing import require_rate
from apps.triage.services.reasons_for_omitted_messages import TOO_LARGE, reason_values

PREVIEW_LIVES = timedelta(minutes=15)
# A worker takes the items of a larger selection; Confirm waits for it.
TAKEN_AT_ONCE = 20_000
MOST_IDS = 10_000
# Unconfirmed previews of one actor: each stores a copy of its selection.
MOST_PREVIEWS = 200
MOST_COUNTED = 10_001
MOST_NAMED = 100
MOVED_IS_NEVER_CONFIRMED = (
    "what is sent to another topic, or given back, is never confirmed: go by what did "
    "not come back within the time (null)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionRequest:
    """A requested verb and its items, chosen in exactly one of five ways.

    All poisons that match a query; some by their ids; all that an operation dropped; or
    those of an operation that have one of these `standings`, to be sent again. Items of
    another `kind`: all that match `filters`, in the words of that kind.
    `ordered`: send the messages of each topic one after the other, as captured.
    `rate` is the highest number of messages a second.
    """

    verb: Verb
    kind: ItemKindName = ItemKindName.POISON
    query: Query | None = None
    filters: str | None = None
    ids: tuple[int, ...] = ()
    dropped_by: int | None = None
    retry_of: int | None = None
    standings: tuple[str, ...] = ()
    target_topic: str | None = None
    ordered: bool = False
    rate: int | None = None
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        self._require_one_way()
        if self.verb not in VERBS[self.kind]:
            raise Invalid("verb", f"give one of {', '.join(VERBS[self.kind])}")
        self._require_route()
        if (self.kind, self.verb) not in PACED and self.rate is not None:
            raise Invalid("rate", "only what is sent or tried has a rate")
        if self.verb.value not in SENDS and self.ramp is not None:
            raise Invalid("ramp", "only a redrive has a ramp")
        require_rate(self.rate)

    @property
    def stored_query(self) -> str | None:
        """Return the query that an operation stores; None if its items were picked."""
        return self.filters if self.query is None else str(self.query)

    def _require_one_way(self) -> None:
        ways = [
            self.query is not None,
            bool(self.ids),
            self.dropped_by is not None,
            self.retry_of is not None,
            self.filters is not None,
        ]
        if sum(ways) != 1:
            raise Invalid("q", "give either a query or ids, and at least one id")
        if (self.filters is None) != (self.kind is ItemKindName.POISON):
            raise Invalid("q", "messages are chosen by a query or ids, others are not")
        if len(self.ids) > MOST_IDS:
            raise Invalid("ids", f"give at most {MOST_IDS} ids, or a query")

    def _require_route(self) -> None:
        if self.target_topic and self.verb.value not in SENDS:
            raise Invalid("target_topic", "only a redrive goes to another topic")
        if self.verb is Verb.GIVE_BACK and not self.target_topic:
            raise Invalid(
                "target_topic",
                "name the topic whose dead-letter queue gets its messages again",
            )
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
class SendLimits:
    """How fast messages are sent: at most so many a second, and by which ramp."""

    rate: int | None = None
    ramp: Ramp | None = None

    def __post_init__(self) -> None:
        require_rate(self.rate)

    @classmethod
    def of(cls, operation: Operation) -> Self:
        """Return the limits that an operation was previewed with."""
        ramp = Ramp.from_json(operation.ramp) if operation.ramp else None
        return cls(rate=operation.rate, ramp=ramp)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewSummary:
    """A preview with its figures beside the total; counts are of items.

    `breakdown` counts topics by id, which `topic_names` names. `elsewhere` has the
    messages that failed in another queue, among the first to be sent. `redirects` names
    the topics that are requeued elsewhere by their policies, and where to.
    `without_sender` names the first topics to which it would send and nothing can.
    """

    operation: Operation
    will_act: int
    breakdown: ItemBreakdown
    topic_names: Mapping[str, str]
    sample: tuple[Poison, ...]
    newer: int
    redirects: Mapping[str, str]
    elsewhere: tuple[MisroutedCount, ...]
    without_sender: tuple[str, ...]

    @property
    def skipped(self) -> Shares:
        """Return how many items are skipped by reason, the most frequent first."""
        return self.breakdown.skipped.values

    @property
    def may_go_elsewhere(self) -> bool:
        """Tell whether another target topic would let the operation act on more."""
        return any(reason == TOO_LARGE for reason, _ in self.skipped)

    @property
    def topics(self) -> Largest:
        """Return how many items each topic has, by name."""
        return self.breakdown.topics.renamed(self.topic_names)

    @property
    def redirected_topics(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.redirects.items())

    @property
    def by_topic(self) -> Shares:
        return self.topics.values

    @property
    def by_consumer(self) -> Shares:
        return self.breakdown.consumers.values

    @property
    def by_endpoint(self) -> Shares:
        """Return how many deliveries each endpoint has, by name."""
        return dict(self.breakdown.groups).get("endpoint", Largest()).values

    @property
    def left_out(self) -> Shares | TooSlow:
        """Return the headers that will not be sent, and how many messages have each."""
        left_out = self.breakdown.left_out
        return TOO_SLOW if left_out is None else left_out


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
    _require_retried(selection, principal)
    target = _target_topic(selection, principal)
    kind = kind_named(selection.kind)
    rows = kind.select(selection, topics=principal.topics)
    if selection.ordered:
        _require_order(rows, target)
    if selection.ramp is not None and selection.ramp.confirmed is not None:
        _require_confirmable(selection, rows, target, principal)
    limit = TAKEN_AT_ONCE if at_once is None else at_once
    is_large = _count_up_to(limit + 1, selection, rows) > limit
    with transaction.atomic():
        operation = Operation.objects.create(
            kind=selection.kind.value,
            layout=LAYOUT_OF[selection.kind],
            verb=selection.verb.value,
            actor=str(principal.actor),
            source=principal.source,
            topics=list(principal.topics),
            query=selection.stored_query,
            target_topic=target,
            ordered=selection.ordered,
            rate=selection.rate,
            ramp=selection.ramp and selection.ramp.to_json(),
            undo_of_id=selection.dropped_by,
            retry_of_id=selection.retry_of,
            standings=list(selection.standings),
            reason=reason,
            newest=Poison.objects.aggregate(newest=Max("pk"))["newest"] or 0,
            created_at=now,
            expires_at=now + PREVIEW_LIVES,
        )
        operation = Operation.objects.get(pk=operation.pk)
        if not is_large:
            # Look topics up again: one may have been created before the snapshot.
            again = kind.select(selection, topics=principal.topics)
            _insert_items(operation, again, now=now)
    return Operation.objects.get(pk=operation.pk)


@transaction.atomic
def take(*, operation_id: int, now: datetime) -> None:
    """Insert the items of a large preview, as of the moment of its request.

    Idempotent: a second worker finds the items taken, or leaves them to the first. For
    a million that takes a minute, in which it would do nothing else but wait.
    """
    untaken = Operation.objects.of_this_release().previews().filter(taken=False)
    unlocked = untaken.select_for_update(skip_locked=True)
    operation = unlocked.filter(pk=operation_id).first()
    if operation is not None:
        insert_selection(operation, now=now)


def insert_selection(operation: Operation, *, now: datetime) -> None:
    """Insert the items of an operation that has none, as of the moment of its request.

    Call it inside a transaction that keeps others from doing the same.
    """
    if operation.undo_of_id is not None:
        _copy_dropped_items(operation, dropped_by=operation.undo_of_id, now=now)
        return
    selection = selection_of(operation)
    if selection is not None:
        rows = kind_of(operation).select(selection, topics=operation.topics)
        _insert_items(operation, rows, now=now)


def summarize(*, operation: Operation) -> PreviewSummary:
    """Return what an operation's preview has, and count later arrivals."""
    breakdown = breakdown_of(operation)
    topics = [int(topic) for topic, _ in breakdown.topics.values]
    names = Topic.objects.filter(pk__in=topics).values_list("pk", "name")
    samples = Poison.objects.select_related("topic").in_bulk(breakdown.samples)
    newer = 0 if operation.query is None else kind_of(operation).count_newer(operation)
    return PreviewSummary(
        operation=operation,
        will_act=operation.will_act,
        breakdown=breakdown,
        topic_names={str(pk): name for pk, name in names},
        sample=tuple(samples[pk] for pk in breakdown.samples if pk in samples),
        newer=newer,
        redirects=operation_redirects.names_of(operation),
        elsewhere=redrive_to_other_queue_count.count_elsewhere(
            operation, breakdown.first
        ),
        without_sender=_topics_without_sender(operation, breakdown),
    )


def topics_of(operation: Operation, breakdown: ItemBreakdown) -> list[int]:
    """List the ids of the topics of a preview's messages.

    Where the breakdown does not tell them: of all topics that the operation may touch.
    """
    if breakdown.topic_ids is not None:
        return list(breakdown.topic_ids)
    allowed = Topic.objects.matching(operation.topics)
    return list(allowed.values_list("pk", flat=True))


def _topics_without_sender(
    operation: Operation, breakdown: ItemBreakdown
) -> tuple[str, ...]:
    """Name some topics whose messages an operation would send and would be refused."""
    if operation.verb not in SENDS:
        return ()
    targets = operation_redirects.targets_of(operation, topics_of(operation, breakdown))
    topics = senders_of_topics_without_broker.topics_without_sender(targets)
    return tuple(topics.order_by("name").values_list("name", flat=True)[:MOST_NAMED])


def breakdown_of(operation: Operation) -> ItemBreakdown:
    """Return a preview's stored counts of its items; none before they exist.

    Those of a preview that was converted from the release before are counted now.
    """
    if operation.breakdown is not None:
        return ItemBreakdown.from_json(operation.breakdown)
    if not operation.is_taken:
        return ItemBreakdown()
    with transaction.atomic():
        breakdown = kind_of(operation).count(operation, now=operation.created_at)
    Operation.objects.filter(pk=operation.pk).update(breakdown=breakdown.to_json())
    return breakdown


def preview_again(
    *,
    operation: Operation,
    route: Route,
    limits: SendLimits | None = None,
    reason: str,
    principal: Principal,
    now: datetime,
) -> Operation | None:
    """Preview an operation's request again, to this route's topic and in its order.

    Returns None if it had chosen only messages that do not exist.
    """
    selection = selection_of(operation)
    if selection is None:
        return None
    limits = limits or SendLimits.of(operation)
    if selection.verb.value in SENDS:
        selection = replace(
            selection,
            target_topic=route.target_topic,
            ordered=route.ordered,
            rate=limits.rate,
            ramp=limits.ramp,
        )
    elif operation.may_have_a_rate:
        selection = replace(selection, rate=limits.rate)
    draft = storable(reason)[:REASON_LIMIT]
    return preview(selection=selection, principal=principal, now=now, reason=draft)


def selection_of(operation: Operation) -> SelectionRequest | None:
    """Rebuild the request that an operation was previewed from.

    Returns None if it had chosen only messages that do not exist, or chose them one by
    one in the release before.
    """
    return kind_of(operation).selection_of(operation)


def _target_topic(selection: SelectionRequest, principal: Principal) -> Topic | None:
    """Find the topic to send messages to, None for their own; raise Invalid."""
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
    if selection.verb is Verb.GIVE_BACK and not topic.dead_letter_queue:
        raise Invalid(
            "target_topic", f"the topic {topic.name} has no dead-letter queue"
        )
    return topic


def _require_order(poisons: QuerySet[Any], target: Topic | None) -> None:
    """Raise Invalid if a topic that messages would be sent to keeps no order."""
    within = set(poisons.order_by().values_list("topic", flat=True).distinct())
    elsewhere = operation_redirects.policy_targets(within)
    ids = {elsewhere.get(topic, topic) for topic in within}
    sent_to = Topic.objects.filter(pk__in=ids).select_related("broker")
    topics = [target] if target else sent_to.order_by("name")
    for topic in topics:
        # The messages of a topic without a broker are refused one by one.
        if topic.broker_id and brokers.ordering_of(topic) is Ordering.NONE:
            raise Invalid(
                "ordered",
                f"the topic {topic.name} keeps no order: whatever is sent there may be "
                "handed out in any. Requeue without it.",
            )


def _require_confirmable(
    selection: SelectionRequest,
    poisons: QuerySet[Any],
    target: Topic | None,
    principal: Principal,
) -> None:
    """Raise Invalid if a ramp waits for confirmations, but all messages are moved."""
    if target is None:
        visible = Topic.objects.matching(principal.topics)
        stay = visible.filter(requeue_topic=None)
    else:
        stay = Topic.objects.filter(pk=target.pk)
    is_give_back = selection.verb is Verb.GIVE_BACK
    if not is_give_back and poisons.filter(topic__in=stay.values("pk")).exists():
        return
    if is_give_back or poisons.exists():
        raise Invalid("ramp/confirmed", MOVED_IS_NEVER_CONFIRMED)


def _require_room(principal: Principal, *, now: datetime) -> None:
    """Raise Refused if the principal has too many previews open."""
    previews = Operation.objects.previews().filter(actor=str(principal.actor))
    if previews.filter(expires_at__gt=now).count() >= MOST_PREVIEWS:
        minutes = PREVIEW_LIVES // timedelta(minutes=1)
        raise Refused(
            f"You have {MOST_PREVIEWS} previews open, the most there may be: "
            f"confirm one, or wait up to {minutes} minutes until one ends."
        )


_TAKE = """
WITH judged AS (
    SELECT {table}.id, row_number() OVER (ORDER BY {order}) - 1 AS number,
           CASE WHEN holder.operation IS NOT NULL
                THEN 'operation ' || holder.operation || ' has it'
                {reasons}
                ELSE '' END AS reason
    FROM {table}
    LEFT JOIN {holds} holder ON holder.{key} = {table}.id
    {first}
    WHERE {table}.id IN ({selected}) {as_of}
), skipped AS (
    INSERT INTO triage_skipped_item (operation_id, number, reason)
    SELECT %(operation)s, number, reason FROM judged WHERE reason <> ''
)
INSERT INTO {items} (operation_id, number, {key})
SELECT %(operation)s, number, id FROM judged ORDER BY number
"""


def _insert_items(operation: Operation, rows: QuerySet[Any], *, now: datetime) -> None:
    """Insert the items of a preview by one statement, and store their numbers."""
    kind = kind_of(operation)
    inner, parameters = statement_of(rows.order_by().values("pk"))
    inner_values = {f"p{index}": value for index, value in enumerate(parameters)}
    keeps_order = operation.ordered or operation.verb == Verb.GIVE_BACK
    statement = kind.sql(
        _TAKE,
        reasons=kind.reasons[Verb(operation.verb)],
        first=kind.join_by_capture if keeps_order else "",
        order=kind.order_by_capture if keeps_order else kind.order,
        selected=inner % tuple(f"%({name})s" for name in inner_values),
    )
    operation_redirects.store(operation)
    values = {
        **reason_values(operation, now=now),
        "as_of": operation.as_of,
        "asked_at": operation.created_at,
    }
    with connection.cursor() as cursor:
        cursor.execute(statement, {**values, **inner_values})
        total = cursor.rowcount
    _store_numbers(operation, total, now=now)


# Who sees the drop sees all that it dropped.
_COPY = """
INSERT INTO triage_selected_item (operation_id, number, poison_id)
SELECT %s, row_number() OVER (ORDER BY number) - 1, poison_id FROM ({dropped}) item
ORDER BY number
"""


def _copy_dropped_items(
    operation: Operation, *, dropped_by: int, now: datetime
) -> None:
    """Insert a drop's dropped items as the items of an undo; count them.

    No poison is read: one that is not dropped any more is skipped when it is judged.
    """
    dropped = Item.objects.acted_on(dropped_by).order_by()
    inner, parameters = statement_of(dropped.values("number", "poison_id"))
    with connection.cursor() as cursor:
        cursor.execute(_COPY.format(dropped=inner), [operation.pk, *parameters])
        total = cursor.rowcount
    _store_numbers(operation, total, now=now)


def _store_numbers(operation: Operation, total: int, *, now: datetime) -> None:
    """Store a preview's number of items, and what its page shows of them."""
    operation.total = total
    breakdown = kind_of(operation).count(operation, now=now)
    operation_redirects.keep_those_of(operation, breakdown.topic_ids)
    skipped = breakdown.skipped
    Operation.objects.filter(pk=operation.pk).update(
        taken=True,
        total=total,
        will_act=total - sum(n for _, n in skipped.values) - skipped.others,
        breakdown=breakdown.to_json(),
    )


def _count_up_to(most: int, selection: SelectionRequest, rows: QuerySet[Any]) -> int:
    """Count the items that a request selects; for an undo, the dropped ones.

    Of these Postgres would read all, only to see that there are many.
    """
    if selection.dropped_by is not None:
        return Item.objects.acted_on(selection.dropped_by).order_by()[:most].count()
    return rows.order_by().values("pk")[:most].count()


def _require_retried(selection: SelectionRequest, principal: Principal) -> None:
    """Raise Absent if the messages of an unknown operation would be tried again."""
    if selection.retry_of is None:
        return
    visible = Operation.objects.visible_to(principal).filter(verb__in=SENDS)
    retried = visible.filter(pk=selection.retry_of).first()
    if retried is None:
        raise Absent(f"There is no requeue with the number {selection.retry_of}.")
    require_converted(retried)
