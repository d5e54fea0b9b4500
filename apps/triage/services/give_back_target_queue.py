"""The dead-letter queue that an operation gives messages back to."""

from __future__ import annotations

from django.db import connection, transaction

from apps.core.errors import Refused
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services.fencing import fence

# The last one is the least likely to have been sent.
_HELD_FOR = """
SELECT queue FROM poison_hold WHERE operation = %(operation)s ORDER BY item DESC LIMIT 1
"""

_FOLLOW = """
UPDATE poison_hold SET queue = %(queue)s
WHERE operation = %(operation)s AND queue <> %(queue)s
  AND NOT EXISTS (SELECT FROM poison_redrive known
                  WHERE known.poison_id = poison_hold.poison_id
                    AND known.n = poison_hold.n)
"""


@transaction.atomic
def follow_queue(operation: Operation) -> None:
    """Let an operation give its messages back to their topic's present queue.

    Change the dead-letter queue of the operation's holds; what may have been sent stays
    with its queue. Raises LockLost if a newer run of the operation has started, Refused
    if the topic has no dead-letter queue any more.
    """
    fence(operation=operation.pk, run=operation.run)
    with connection.cursor() as cursor:
        cursor.execute(_HELD_FOR, {"operation": operation.pk})
        row = cursor.fetchone()
        if row and row[0] != (queue := queue_to_give_back_to(operation)):
            cursor.execute(_FOLLOW, {"operation": operation.pk, "queue": queue})


def queue_to_give_back_to(operation: Operation) -> str:
    """Return the dead-letter queue to which an operation gives messages back.

    Return "" if it does not give back. Raises Refused if the topic has no such queue
    any more.
    """
    topic = operation.target_topic
    if operation.verb != Verb.GIVE_BACK or topic is None:
        return ""
    if not topic.dead_letter_queue:
        raise Refused(f"the topic {topic.name} has no dead-letter queue any more")
    return topic.dead_letter_queue
