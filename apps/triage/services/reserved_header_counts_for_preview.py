"""Count the reserved headers that a redrive leaves out: they would steer the broker.

The broker of the target names its reserved headers. The headers that describe a failure
are not among them: every redrive leaves those out, whatever its target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from django.db import connection

from apps.brokers.models import Topic
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.core.text_cleaning import readable
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services.operation_redirects import targets_of

# Headers are one flat array: name, value, name, value. `&&` filters cheaply before the
# headers are unnested.
COUNT = """
SELECT reserved.name, count(*)
FROM triage_selected_item item
JOIN poison_poison poison ON poison.id = item.poison_id
JOIN poison_body body ON body.poison_id = poison.id
     AND body.day = (poison.captured_at AT TIME ZONE 'UTC')::date
LEFT JOIN triage_redirect redirect ON redirect.operation_id = item.operation_id
     AND redirect.topic_id = poison.topic_id
JOIN unnest(%(topics)s::bigint[], %(names)s::bytea[]) AS reserved(topic, name)
  ON reserved.topic
     = coalesce(%(target)s::bigint, redirect.target_id, poison.topic_id)
WHERE item.operation_id = %(operation)s
  AND item.number >= %(first)s AND item.number < %(end)s
  AND NOT EXISTS (SELECT FROM triage_skipped_item
                  WHERE operation_id = item.operation_id AND number = item.number)
  AND body.headers && %(names)s::bytea[]
  AND EXISTS (SELECT FROM unnest(body.headers) WITH ORDINALITY AS flat(part, place)
              WHERE flat.place %% 2 = 1 AND flat.part = reserved.name)
GROUP BY reserved.name
"""


def count_left_out(
    operation: Operation, *, topics: Collection[int], first: int, end: int
) -> Counter[str]:
    """Count for each reserved header the messages that will be sent without it.

    Of the items from number `first` to before `end`, whose topics are `topics`.
    """
    if operation.verb != Verb.REDRIVE:
        return Counter()
    pairs = [
        (topic.pk, name)
        for topic in _target_topics(operation, topics)
        for name in sorted(brokers.lost_headers_of(topic))
    ]
    if not pairs:
        return Counter()
    values = {
        "operation": operation.pk,
        "first": first,
        "end": end,
        "target": operation.target_topic_id,
        "topics": [topic for topic, _ in pairs],
        "names": [name for _, name in pairs],
    }
    with connection.cursor() as cursor:
        cursor.execute(COUNT, values)
        return Counter({readable(name): number for name, number in cursor.fetchall()})


def _target_topics(operation: Operation, topics: Collection[int]) -> list[Topic]:
    """Select the topics that messages will be sent to and that have a broker."""
    with_broker = Topic.objects.exclude(broker=None).select_related("broker")
    return list(with_broker.filter(pk__in=targets_of(operation, topics)))
