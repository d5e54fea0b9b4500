"""Insert the items of a preview by one statement, and store their numbers.

They are those that the selection had at the moment of its request.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from apps.core.queryset_sql import statement_of
from apps.triage.item_kinds import kind_of
from apps.triage.models import Item, Operation
from apps.triage.operation_states import Verb
from apps.triage.services import operation_redirects
from apps.triage.services.reasons_for_omitted_messages import reason_values


def insert_selection(operation: Operation, *, now: datetime) -> None:
    """Insert the items of an operation that has none, as of the moment of its request.

    Call it inside a transaction that keeps others from doing the same.
    """
    if operation.undo_of_id is not None:
        _copy_dropped_items(operation, dropped_by=operation.undo_of_id, now=now)
        return
    kind = kind_of(operation)
    selection = kind.selection_of(operation)
    if selection is not None:
        rows = kind.select(selection, topics=operation.topics)
        insert_items(operation, rows, now=now)


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


def insert_items(operation: Operation, rows: QuerySet[Any], *, now: datetime) -> None:
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
