"""Messages that failed in another queue than the one a redrive would send them to."""

from __future__ import annotations

from apps.poison import origins
from apps.poison.origins import MisroutedCount
from apps.triage.models import Item, Operation
from apps.triage.states import Verb

# So many messages are asked where they failed: each brings its headers along.
MOST_READ = 200


def elsewhere(operation: Operation) -> tuple[MisroutedCount, ...]:
    """Count who says that it failed elsewhere, among the first that would be sent.

    None of them where somebody chose the topic: they know where it goes.
    """
    if operation.verb != Verb.REDRIVE or operation.target_topic_id is not None:
        return ()
    waiting = Item.objects.filter(operation=operation).waiting().order_by("id")
    found = waiting.values_list("poison_id", "poison__topic__native_name")
    return tuple(origins.among(list(found[:MOST_READ])))
