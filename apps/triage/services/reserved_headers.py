"""Headers that a redrive leaves behind: they would steer the broker it goes to.

Which these are, the broker of the target says. Those that tell of a failure are not
among them: they stay behind wherever a message goes, and belong to nobody any more.
"""

from __future__ import annotations

from django.db import connection

from apps.brokers.models import Topic
from apps.brokers.services import topics as brokers
from apps.core.text import readable
from apps.triage.models import Operation
from apps.triage.states import Verb

# Headers are flat: name, value, name, value. Overlapping is quickly told; only what may
# have one is taken apart.
COUNT = """
SELECT reserved.name, count(*)
FROM triage_item item
JOIN poison_poison poison ON poison.id = item.poison_id
JOIN poison_body body ON body.poison_id = poison.id
     AND body.day = (poison.captured_at AT TIME ZONE 'UTC')::date
JOIN unnest(%(topics)s::bigint[], %(names)s::bytea[]) AS reserved(topic, name)
  ON reserved.topic = coalesce(%(target)s::bigint, poison.topic_id)
WHERE item.operation_id = %(operation)s AND item.state = 'waiting'
  AND body.headers && %(names)s::bytea[]
  AND EXISTS (SELECT FROM unnest(body.headers) WITH ORDINALITY AS flat(part, place)
              WHERE flat.place %% 2 = 1 AND flat.part = reserved.name)
GROUP BY reserved.name
ORDER BY count(*) DESC, reserved.name
"""


def left_out(operation: Operation) -> tuple[tuple[str, int], ...]:
    """Count for each reserved header how many of the messages will go without it."""
    if operation.verb != Verb.REDRIVE:
        return ()
    pairs = [
        (topic.pk, name)
        for topic in _targets(operation)
        for name in sorted(brokers.lost_headers_of(topic))
    ]
    if not pairs:
        return ()
    values = {
        "operation": operation.pk,
        "target": operation.target_topic_id,
        "topics": [topic for topic, _ in pairs],
        "names": [name for _, name in pairs],
    }
    with connection.cursor() as cursor:
        cursor.execute(COUNT, values)
        return tuple((readable(name), number) for name, number in cursor.fetchall())


def _targets(operation: Operation) -> list[Topic]:
    """Give the topics that will be sent to, as far as a broker carries them."""
    topics = Topic.objects.exclude(broker=None).select_related("broker")
    if operation.target_topic_id is not None:
        return list(topics.filter(pk=operation.target_topic_id))
    waiting = operation.items.waiting()
    return list(topics.filter(pk__in=waiting.values("poison__topic")))
