"""Find messages that failed in another queue than a redrive would send them to."""

from __future__ import annotations

from collections.abc import Sequence

from apps.poison import origin_queue_mismatch
from apps.poison.models import Poison
from apps.poison.origin_queue_mismatch import MisroutedCount
from apps.triage.models import Operation
from apps.triage.operation_states import Verb

# How many messages are examined: each one's headers must be read.
MOST_READ = 200


def count_elsewhere(
    operation: Operation, first: Sequence[int]
) -> tuple[MisroutedCount, ...]:
    """Count a redrive's first poisons that failed in another queue than its target.

    Empty if the actor chose the target topic: they know where it goes. Those whose
    topic is requeued elsewhere do not count.
    """
    if operation.verb != Verb.REDRIVE or operation.target_topic_id is not None:
        return ()
    redirected = operation.redirects.values("topic")
    poisons = Poison.objects.filter(pk__in=first[:MOST_READ])
    poisons = poisons.exclude(topic__in=redirected)
    topics = dict(poisons.values_list("pk", "topic__native_name"))
    return tuple(
        origin_queue_mismatch.count_by_queue(
            [(pk, topics[pk]) for pk in first if pk in topics]
        )
    )
