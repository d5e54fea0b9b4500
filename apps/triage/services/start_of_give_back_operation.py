"""Start the operation that gives a topic's open poisons back to its dead-letter queue.

The messages go there as they were captured, with nothing added and nothing left out, in
the order of capture. It is an operation like any other: when a run dies, the next one
takes over.
"""

from __future__ import annotations

from datetime import datetime

from apps.brokers.models import Topic
from apps.core.errors import Refused
from apps.poison.query_language import Query, Term
from apps.team.rights import Principal
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, previews
from apps.triage.services.selection_requests import SelectionRequest


def give_back(
    *, topic: Topic, reason: str, principal: Principal, now: datetime
) -> Operation | None:
    """Start, or return, a topic's give back; None if no message is open."""
    if topic.broker_id is None or not topic.dead_letter_queue:
        raise Refused(
            f"the topic {topic.name} has no dead-letter queue to give back to"
        )
    unfinished = Operation.objects.unfinished().filter(
        verb=Verb.GIVE_BACK, target_topic=topic
    )
    if operation := unfinished.first():
        return operation
    selection = SelectionRequest(
        verb=Verb.GIVE_BACK,
        query=Query((Term("topic", topic.name), Term("is", "open"))),
        target_topic=topic.name,
    )
    preview = previews.preview(selection=selection, principal=principal, now=now)
    previews.take(operation_id=preview.pk, now=now)
    if not preview.items.not_skipped().exists():
        return None
    return confirm_and_undo.confirm(
        token=preview.token, reason=reason, principal=principal, now=now
    )
