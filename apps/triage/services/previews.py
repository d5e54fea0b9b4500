"""Freeze a selection as a preview: an operation with its items.

A confirmed operation acts on exactly the previewed items: one that arrives later is
never among them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet

from apps.audit.services import REASON_LIMIT
from apps.brokers.adapter_contract import Ordering
from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.errors import Absent, Invalid, Refused
from apps.core.text_cleaning import storable
from apps.poison.models import Poison
from apps.team.rights import Principal, Scope
from apps.triage.item_kinds import kind_named, kind_of
from apps.triage.models import Item, Operation
from apps.triage.operation_states import LAYOUT_OF, SENDS, Verb
from apps.triage.services import operation_redirects, preview_items
from apps.triage.services.earlier_layout_conversion import require_converted
from apps.triage.services.selection_requests import Route, SelectionRequest, SendLimits

PREVIEW_LIVES = timedelta(minutes=15)
# A worker takes the items of a larger selection; Confirm waits for it.
TAKEN_AT_ONCE = 20_000
# Unconfirmed previews of one actor: each stores a copy of its selection.
MOST_PREVIEWS = 200
MOVED_IS_NEVER_CONFIRMED = (
    "what is sent to another topic, or given back, is never confirmed: go by what did "
    "not come back within the time (null)"
)


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
            preview_items.insert_items(operation, again, now=now)
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
        preview_items.insert_selection(operation, now=now)


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
    selection = kind_of(operation).selection_of(operation)
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
