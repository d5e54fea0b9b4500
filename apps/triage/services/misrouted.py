"""Find messages that failed in another queue than a redrive would send them to."""

from __future__ import annotations

from apps.poison import origins
from apps.poison.origins import MisroutedCount
from apps.triage.models import Item, Operation
from apps.triage.states import Verb

# How many messages are examined: each one's headers must be read.
MOST_READ = 200


def count_elsewhere(operation: Operation) -> tuple[MisroutedCount, ...]:
    """Count, among the first to be sent, the messages that failed in another queue.

    Empty if the actor chose the target topic: they know where it goes.
    """
    if operation.verb != Verb.REDRIVE or operation.target_topic_id is not None:
        return ()
    waiting = Item.objects.filter(operation=operation).waiting().order_by("id")
    rows = waiting.values_list("poison_id", "poison__topic__native_name")
    return tuple(origins.among(list(rows[:MOST_READ])))
