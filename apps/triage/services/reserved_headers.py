"""Count the reserved headers that a redrive leaves out: they would steer the broker.

The broker of the target names its reserved headers. The headers that describe a failure
are not among them: every redrive leaves those out, whatever its target.
"""

from __future__ import annotations

from django.db import connection

from apps.brokers.models import Topic
from apps.brokers.services import topics as brokers
from apps.core.text import readable
from apps.triage.models import Operation
from apps.triage.states import Verb

# Headers are one flat array: name, value, name, value. `&&` filters cheaply before the
# headers are unnested.
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


def count_left_out(operation: Operation) -> tuple[tuple[str, int], ...]:
    """Count for each reserved header the messages that will be sent without it."""
    if operation.verb != Verb.REDRIVE:
        return ()
    pairs = [
        (topic.pk, name)
        for topic in _target_topics(operation)
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


def _target_topics(operation: Operation) -> list[Topic]:
    """Select the topics that messages will be sent to and that have a broker."""
    topics = Topic.objects.exclude(broker=None).select_related("broker")
    if operation.target_topic_id is not None:
        return list(topics.filter(pk=operation.target_topic_id))
    waiting = operation.items.waiting()
    return list(topics.filter(pk__in=waiting.values("poison__topic")))
