"""Deliveries as the items of operations: how they are selected, judged and acted on."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from django.db import connection

from apps.core.queryset_sql import read_by_index
from apps.redelivery.delivery_filters import PARAMETERS, DeliveryFilter
from apps.redelivery.endpoint_and_delivery_choices import DeliveryState
from apps.redelivery.models import DeliveryHold, DeliveryItem
from apps.redelivery.querysets import DeliveryQuerySet
from apps.redelivery.services.delivery_state_changes import LockedDeliveries
from apps.triage.item_kinds import MOST_COUNTED, DatabaseAct, ItemKind, Judging
from apps.triage.models import Operation
from apps.triage.operation_states import ItemKindName, ItemState, Verb
from apps.triage.preview_breakdown import ItemBreakdown, Largest, Shares
from apps.triage.services.selection_requests import SelectionRequest

# Deliveries of a transaction. Each that is given up becomes a message, with its body.
MOST_AT_ONCE = 500
MOST_GIVEN_UP_AT_ONCE = 50
COUNTED_AT_ONCE = 20_000
AGES = (
    ("under an hour", timedelta(hours=1)),
    ("under a day", timedelta(days=1)),
    ("under a week", timedelta(days=7)),
    ("a week and more", timedelta.max),
)
DELETED = "it was deleted: it had ended long ago"
_NOT_WAITING: Final[Mapping[DeliveryState, str]] = {
    DeliveryState.TRYING: "a sender is trying it now",
    DeliveryState.FORWARDING: "it is being forwarded",
    DeliveryState.DELIVERED: "already delivered",
    DeliveryState.GIVEN_UP: "already given up",
    DeliveryState.DROPPED: "dropped: restore it first",
    DeliveryState.FORWARDED: "already forwarded",
}
_NOT_DROPPED: Final[Mapping[DeliveryState, str]] = {
    state: f"not dropped: {state.value.replace('_', ' ')}"
    for state in DeliveryState
    if state is not DeliveryState.DROPPED
}
# Why a verb leaves alone what is in one of these states.
_LEFT_ALONE: Final[Mapping[Verb, Mapping[DeliveryState, str]]] = {
    Verb.TRY_NOW: _NOT_WAITING,
    Verb.GIVE_UP: _NOT_WAITING,
    Verb.RESTORE: _NOT_DROPPED,
}
_STANDINGS_BY_VERB: Final = {
    Verb.TRY_NOW: ItemState.DUE,
    Verb.GIVE_UP: ItemState.GIVEN_UP,
    Verb.RESTORE: ItemState.RESTORED,
}

_HOLD = """
    INSERT INTO redelivery_hold (delivery_id, operation, item)
    SELECT id, %(operation)s, number FROM judged WHERE reason = '' ORDER BY id
    ON CONFLICT (delivery_id) DO NOTHING
    RETURNING item AS number
"""

_ACTED_ON = " ".join(
    f"WHEN '{verb}' THEN '{standing}'" for verb, standing in _STANDINGS_BY_VERB.items()
)
# A window is acted on in the order of its items.
_STANDINGS = f"""
SELECT number, delivery_id, topic, standing, explanation, '', NULL, NULL
FROM (
    SELECT item.number, item.delivery_id, coalesce(topic.name, '') AS topic,
           CASE WHEN item.reason <> '' THEN 'skipped'
                WHEN item.number < item.acted_to
                THEN CASE operation.verb {_ACTED_ON} END
                ELSE 'waiting' END AS standing,
           item.reason AS explanation
    FROM ({{items}})
         item (number, delivery_id, reason, state, acted_to, dropped, restored)
    JOIN triage_operation operation ON operation.id = %(operation)s
    LEFT JOIN redelivery_delivery delivery ON delivery.id = item.delivery_id
    LEFT JOIN redelivery_endpoint endpoint ON endpoint.id = delivery.endpoint_id
    LEFT JOIN brokers_topic topic ON topic.id = endpoint.topic_id
) item
WHERE standing = ANY(%(standings)s) ORDER BY number LIMIT %(limit)s
"""  # noqa: S608 - made of our own names

_COUNT = """
SELECT endpoint.name, delivery.last_status,
       CASE WHEN delivery.accepted_at > %(age0)s THEN 0
            WHEN delivery.accepted_at > %(age1)s THEN 1
            WHEN delivery.accepted_at > %(age2)s THEN 2 ELSE 3 END,
       count(*)
FROM redelivery_selected_item item
JOIN redelivery_delivery delivery ON delivery.id = item.delivery_id
JOIN redelivery_endpoint endpoint ON endpoint.id = delivery.endpoint_id
WHERE item.operation_id = %(operation)s
  AND item.number >= %(first)s AND item.number < %(end)s
  AND NOT EXISTS (
      SELECT FROM triage_skipped_item
      WHERE operation_id = item.operation_id AND number = item.number)
GROUP BY 1, 2, 3
"""

_SKIPPED = """
SELECT reason, count(*) FROM triage_skipped_item WHERE operation_id = %s GROUP BY 1
"""


def selection_of_matches(
    verb: Verb, params: Mapping[str, str], **members: Any
) -> SelectionRequest:
    """Build the selection, for a preview, of all deliveries that match parameters.

    `members` are other members of the `SelectionRequest`. Raises Invalid for parameters
    that are no delivery filter.
    """
    DeliveryFilter.parse(params)
    chosen = [(name, params[name]) for name in PARAMETERS if params.get(name)]
    return SelectionRequest(
        verb=verb, kind=ItemKindName.DELIVERY, filters=urlencode(chosen), **members
    )


def filter_of(operation: Operation) -> dict[str, str]:
    """Return the parameters by which an operation chose its deliveries."""
    return dict(parse_qsl(operation.query or ""))


def _select(selection: SelectionRequest, *, topics: Sequence[str]) -> DeliveryQuerySet:
    return _matching(selection.filters or "", topics)


def _matching(filters: str, topics: Sequence[str]) -> DeliveryQuerySet:
    return DeliveryFilter.parse(dict(parse_qsl(filters))).on_endpoints(topics)


def _selection_of(operation: Operation) -> SelectionRequest:
    return SelectionRequest(
        verb=Verb(operation.verb),
        kind=ItemKindName.DELIVERY,
        filters=operation.query or "",
        rate=operation.rate,
    )


def _count(operation: Operation, *, now: datetime) -> ItemBreakdown:
    """Count an operation's deliveries by endpoint, last answer and age.

    Each statement reads some thousands.
    """
    endpoints, answers, ages = Counter[str](), Counter[str](), Counter[int]()
    bounds = {f"age{i}": now - age for i, (_, age) in enumerate(AGES[:-1])}
    with connection.cursor() as cursor:
        read_by_index()
        for first in range(0, operation.total, COUNTED_AT_ONCE):
            window = {"first": first, "end": first + COUNTED_AT_ONCE}
            cursor.execute(_COUNT, {**bounds, **window, "operation": operation.pk})
            for endpoint, status, age, number in cursor.fetchall():
                endpoints[endpoint] += number
                answers["no answer" if status is None else f"HTTP {status}"] += number
                ages[age] += number
        cursor.execute(_SKIPPED, [operation.pk])
        skipped = Counter(dict(cursor.fetchall()))
    return ItemBreakdown(
        skipped=Largest.of(skipped),
        groups=(
            ("endpoint", Largest.of(endpoints)),
            ("last answer", Largest.of(answers)),
            ("age", Largest(values=_in_order(ages))),
        ),
    )


def _in_order(ages: Mapping[int, int]) -> Shares:
    return tuple((AGES[age][0], number) for age, number in sorted(ages.items()))


def _count_newer(operation: Operation) -> int:
    """Count the deliveries that match now but came after the preview."""
    matching = _matching(operation.query or "", operation.topics)
    newer = matching.filter(accepted_at__gt=operation.created_at)
    return newer.order_by().values("pk")[:MOST_COUNTED].count()


def _free(*, operation: int, first: int, end: int, now: datetime) -> None:  # noqa: ARG001
    """Release the deliveries that an operation has on hold."""
    holds = DeliveryHold.objects.filter(operation=operation)
    holds.filter(item__gte=first, item__lt=end).delete()


def _no_problems(operation: Operation) -> Mapping[str, object]:  # noqa: ARG001
    return {}


def _single_item_detail(operation: Operation) -> Mapping[str, object]:
    skipped = operation.skipped.values("number")
    items = DeliveryItem.objects.filter(operation=operation).order_by("number")
    item = items.exclude(number__in=skipped).first() or items.first()
    return {"delivery": str(item.delivery_id)} if item else {}


@dataclass(frozen=True, slots=True)
class _Act:
    """Act on some deliveries in the way of a verb; see `ActInDatabase`."""

    verb: Verb

    def __call__(
        self, keys: Mapping[int, uuid.UUID], *, now: datetime
    ) -> Mapping[int, str]:
        """Lock and decide about deliveries; return why some were left alone."""
        locked = LockedDeliveries(keys.values())
        match self.verb:
            case Verb.TRY_NOW:
                locked.make_due(now=now)
            case Verb.GIVE_UP:
                locked.give_up(now=now)
            case _:
                locked.begin_again(now=now)
        locked.count_given_up(now=now)
        return {
            number: reason
            for number, key in keys.items()
            if (reason := self._reason(locked.states.get(key)))
        }

    def _reason(self, state: str | None) -> str:
        if state is None:
            return DELETED
        return _LEFT_ALONE[self.verb].get(DeliveryState(state), "")


def _clauses(verb: Verb) -> str:
    """Build the SQL clauses of CASE: why a verb leaves a delivery alone."""
    return f"WHEN redelivery_delivery.id IS NULL THEN '{DELETED}' " + " ".join(
        f"WHEN redelivery_delivery.state = '{state}' THEN '{reason}'"
        for state, reason in _LEFT_ALONE[verb].items()
    )


_SUBJECT = re.compile(r"delivery:([0-9a-f-]{36})", re.ASCII)


def _id_in_subject(subject: str) -> str | None:
    """Parse the delivery's id in the subject of an audit entry; None without one."""
    match = _SUBJECT.fullmatch(subject)
    return match and match[1]


DELIVERIES = ItemKind(
    name=ItemKindName.DELIVERY,
    table="redelivery_delivery",
    items="redelivery_selected_item",
    key="delivery_id",
    holds="redelivery_hold",
    as_of="AND redelivery_delivery.accepted_at <= %(asked_at)s",
    order="redelivery_delivery.id",
    reasons={verb: _clauses(verb) for verb in _LEFT_ALONE},
    judging={verb: Judging(statement=_HOLD, holds=True) for verb in _LEFT_ALONE},
    database_acts={
        verb: DatabaseAct(
            act=_Act(verb),
            standing=standing.value,
            most=MOST_GIVEN_UP_AT_ONCE if verb is Verb.GIVE_UP else MOST_AT_ONCE,
        )
        for verb, standing in _STANDINGS_BY_VERB.items()
    },
    # A sender must not wait for a judgement; who acts looks again.
    is_locked_to_judge=False,
    is_deleted_by_age=True,
    standings=_STANDINGS,
    select=_select,
    selection_of=_selection_of,
    count=_count,
    count_newer=_count_newer,
    free=_free,
    key_in_subject=_id_in_subject,
    problem_detail=_no_problems,
    single_item_detail=_single_item_detail,
)
