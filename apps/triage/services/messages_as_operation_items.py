"""Poisons as the items of operations: how they are selected, judged and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from django.db.models import Exists, OuterRef, QuerySet

from apps.brokers import topic_names_to_id_filters
from apps.poison.models import Poison, Redrive
from apps.poison.query_language import Query
from apps.poison.querysets import PoisonQuerySet
from apps.poison.services import sends
from apps.poison.states import RedriveOutcome
from apps.triage.item_kinds import MOST_COUNTED, ItemKind, Judging
from apps.triage.models import Item, Operation
from apps.triage.operation_states import LAYOUT, SILENT, ItemKindName, Verb
from apps.triage.ramps import Ramp
from apps.triage.services import preview_breakdown_counting
from apps.triage.services.reasons_for_omitted_messages import REASONS
from apps.triage.services.selection_requests import SelectionRequest

MOST_LOOKED_AT = 1_000
MOST_PROBLEMS = 100
# Messages may be captured out of the order of their ids. It takes less than a second to
# capture these.
OUT_OF_ORDER = 20_000

_HOLD = """
    INSERT INTO poison_hold (poison_id, operation, item, n, topic_id, queue)
    SELECT id, %(operation)s, number, redrives + 1,
           coalesce(%(target)s, redirect.target_id, judged.topic_id), %(queue)s
    FROM judged LEFT JOIN triage_redirect redirect
         ON redirect.operation_id = %(operation)s
         AND redirect.topic_id = judged.topic_id
    WHERE reason = '' ORDER BY id
    ON CONFLICT (poison_id) DO NOTHING
    RETURNING item AS number
"""

_DROP = """
    UPDATE poison_poison SET state = 'dropped', dropped_at = %(now)s
    FROM judged WHERE judged.reason = '' AND poison_poison.id = judged.id
    RETURNING judged.number
"""

_RESTORE = """
    UPDATE poison_poison SET state = 'open', dropped_at = NULL
    FROM judged WHERE judged.reason = '' AND poison_poison.id = judged.id
    RETURNING judged.number
"""


# The poisons of one captured batch share a time, and their ids are in no order.
_JOIN_FIRST_FAILURE = (
    "LEFT JOIN LATERAL (SELECT id FROM poison_failure"
    " WHERE poison_id = poison_poison.id AND is_first OFFSET 0) first ON true"
)

# OFFSET 0 makes Postgres look up each row, whatever it knows of the tables.
_STANDINGS = """
SELECT number, poison_id, topic.name, standing, explanation, queue, sent_at, answered_at
FROM (
    SELECT item.number, item.poison_id, CASE
               WHEN item.reason <> '' THEN 'skipped'
               WHEN sent.outcome IS NOT NULL THEN sent.outcome
               WHEN item.dropped > 0 THEN 'dropped'
               WHEN item.restored > 0 THEN 'restored'
               WHEN item.state = 'sending' AND item.number < item.sending_to
                    AND EXISTS (SELECT FROM poison_hold
                                WHERE poison_id = item.poison_id
                                  AND operation = %(operation)s) THEN 'sending'
               ELSE 'waiting' END AS standing,
           coalesce(nullif(item.reason, ''), sent.detail, '') AS explanation,
           coalesce(sent.queue, '') AS queue, sent.sent_at, sent.answered_at
    FROM ({items})
         item (number, poison_id, reason, state, sending_to, dropped, restored)
    LEFT JOIN LATERAL (
        SELECT outcome, detail, queue, sent_at, answered_at FROM poison_redrive
        WHERE poison_id = item.poison_id AND operation = %(operation)s OFFSET 0
    ) sent ON true
    OFFSET 0
) item
CROSS JOIN LATERAL (
    SELECT topic_id FROM poison_poison WHERE id = item.poison_id OFFSET 0
) poison
JOIN brokers_topic topic ON topic.id = poison.topic_id
WHERE standing = ANY(%(standings)s) ORDER BY number LIMIT %(limit)s
"""


def _select(selection: SelectionRequest, *, topics: Sequence[str]) -> PoisonQuerySet:
    """Select the messages that a request means, within these topics."""
    allowed = Poison.objects.on_topics(topics)
    if selection.verb is Verb.GIVE_BACK:
        # By exact name: in a query, a star in the name would match any text.
        allowed = allowed.filter(
            topic_names_to_id_filters.by_name(selection.target_topic or "")
        )
    if selection.query is not None:
        return allowed.matching(selection.query)
    if selection.dropped_by is not None:
        dropped = Item.objects.acted_on(selection.dropped_by)
        return allowed.filter(pk__in=dropped.values("poison_id"))
    if selection.retry_of is not None:
        return allowed.filter(pk__in=_retried(selection.retry_of, selection.standings))
    return allowed.filter(pk__in=selection.ids)


_OUTCOMES = {SILENT: (RedriveOutcome.SENT.value, RedriveOutcome.UNKNOWN.value)}


def _retried(operation: int, standings: Sequence[str]) -> QuerySet[Item, int]:
    """Select the poisons of an operation whose items have these standings.

    A silent one was sent, or may have been, and may be judged as answered later: the
    preview skips it.
    """
    outcomes = [
        outcome for name in standings for outcome in _OUTCOMES.get(name, (name,))
    ]
    sends = Redrive.objects.filter(
        poison=OuterRef("poison"), operation=operation, outcome__in=outcomes
    )
    items = Item.objects.filter(Exists(sends), operation=operation)
    return items.values_list("poison_id", flat=True)


def _selection_of(operation: Operation) -> SelectionRequest | None:
    """Rebuild the selection that an operation was previewed from.

    Returns None if it had chosen only messages that do not exist, or chose them one by
    one in the release before.
    """
    verb, target = Verb(operation.verb), operation.target_topic
    name = None if target is None else target.name
    if operation.undo_of_id is not None:
        return SelectionRequest(verb=verb, dropped_by=operation.undo_of_id)
    if operation.retry_of_id is not None:
        return SelectionRequest(
            verb=verb,
            retry_of=operation.retry_of_id,
            standings=tuple(operation.standings),
            target_topic=name,
            ordered=operation.ordered,
        )
    query = None if operation.query is None else Query.from_canonical(operation.query)
    if query is None and operation.layout != LAYOUT:
        return None
    poison_ids = operation.items.values_list("poison_id", flat=True)
    ids = tuple(poison_ids) if query is None else ()
    if query is None and not ids:
        return None
    return SelectionRequest(
        verb=verb,
        query=query,
        ids=ids,
        target_topic=name,
        ordered=operation.ordered,
        rate=operation.rate,
        ramp=Ramp.from_json(operation.ramp) if operation.ramp else None,
    )


def _count_newer(operation: Operation) -> int:
    """Count the messages that match now but were captured after the preview."""
    allowed = Poison.objects.on_topics(operation.topics)
    matching = allowed.matching(Query.from_canonical(operation.query or ""))
    newer = matching.captured_after(operation.as_of)
    if operation.newest is not None:
        newer = newer.filter(pk__gt=operation.newest - OUT_OF_ORDER)
    return newer.order_by().values("pk")[:MOST_COUNTED].count()


def _problem_detail(operation: Operation) -> Mapping[str, object]:
    return {"problems": _problem_ids(operation)}


def _problem_ids(operation: Operation) -> list[int]:
    """List the problems an operation acts on; [] if slow or too many."""
    query = Query.from_canonical(operation.query or "")
    if ids := query.value_of("problem"):
        problems = sorted({int(each) for each in ids.split(",")})
    elif operation.will_act > MOST_LOOKED_AT:
        return []
    else:
        name = "poison__problem_id"
        items = operation.items.not_skipped().order_by(name)
        problems = list(
            items.values_list(name, flat=True).distinct()[: MOST_PROBLEMS + 1]
        )
    return problems if len(problems) <= MOST_PROBLEMS else []


def _single_item_detail(operation: Operation) -> Mapping[str, object]:
    item = operation.items.not_skipped().first() or operation.items.first()
    return {"message": item.poison_id} if item else {}


_ACTED = "count(*) FILTER (WHERE NOT skip)"
_SUBJECT = re.compile(r"poison:(\d{1,18})", re.ASCII)


def _id_in_subject(subject: str) -> str | None:
    """Parse the poison's id in the subject of an audit entry; None without one."""
    match = _SUBJECT.fullmatch(subject)
    return match and match[1]


POISONS = ItemKind(
    name=ItemKindName.POISON,
    table="poison_poison",
    items="triage_selected_item",
    key="poison_id",
    holds="poison_hold",
    columns=", poison_poison.topic_id, poison_poison.redrives",
    as_of="AND pg_visible_in_snapshot("
    "poison_poison.captured_xid, %(as_of)s::pg_snapshot)",
    order="poison_poison.last_failed_at, poison_poison.id",
    join_by_capture=_JOIN_FIRST_FAILURE,
    order_by_capture="first.id, poison_poison.id",
    reasons=REASONS,
    judging={
        Verb.REDRIVE: Judging(statement=_HOLD, holds=True),
        Verb.GIVE_BACK: Judging(statement=_HOLD, holds=True),
        Verb.DROP: Judging(statement=_DROP, dropped=_ACTED),
        Verb.RESTORE: Judging(statement=_RESTORE, restored=_ACTED),
    },
    standings=_STANDINGS,
    select=_select,
    selection_of=_selection_of,
    count=preview_breakdown_counting.count,
    count_newer=_count_newer,
    free=sends.give_up,
    key_in_subject=_id_in_subject,
    problem_detail=_problem_detail,
    single_item_detail=_single_item_detail,
)
