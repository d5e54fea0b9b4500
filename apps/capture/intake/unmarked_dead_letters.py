"""Match dead letters without a mark to the sends that they answer.

A broker that carries no headers loses the mark of a redrive. Its letter is known by
where it is, by its identity, or only by its body.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.backends.utils import CursorWrapper

from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.poison.services import sends
from apps.poison.states import RedriveOutcome, outcomes_before

# Match a dead letter with the same body to sends without a mark of this last time.
OUTSTANDING = timedelta(days=7)

# Most brokers carry marks. Then there is nothing to match, and this finds out fast.
_ANY_UNMARKED = """
SELECT FROM incoming JOIN poison_redrive sent
    ON sent.topic_id = incoming.topic_id AND sent.digest = incoming.digest
WHERE incoming.queue <> '' AND incoming.redrive IS NULL LIMIT 1
"""

# A message given back is where its broker said, or still has its identity.
_MATCH_BY_PLACE = """
UPDATE incoming SET redrive = sent.id
FROM poison_redrive sent JOIN poison_poison known ON known.id = sent.poison_id
WHERE incoming.queue <> '' AND incoming.redrive IS NULL
  AND sent.topic_id = incoming.topic_id AND sent.digest = incoming.digest
  AND sent.queue = incoming.queue AND sent.outcome = ANY(%(may_recur)s)
  AND (incoming.place <> '' AND sent.bookmark = incoming.place
       OR known.identity = incoming.identity)
"""

# The same for one that is being given back: its place is not recorded yet.
_MATCH_BY_IDENTITY = """
UPDATE incoming SET redrive = sending.id
FROM unnest(%(sending_ids)s::uuid[], %(sending_poisons)s::int8[],
            %(sending_topics)s::int8[], %(sending_queues)s::text[])
     AS sending(id, poison_id, topic_id, queue)
JOIN poison_poison known ON known.id = sending.poison_id
WHERE incoming.queue <> '' AND incoming.redrive IS NULL
  AND sending.topic_id = incoming.topic_id AND sending.queue = incoming.queue
  AND known.identity = incoming.identity AND known.digest = incoming.digest
"""

# Without marks, each letter answers one send with the same body: the last send of each
# poison first, and of these the oldest. A letter reported before has matched already.
# What is being sent just now has no row yet: it is the last send of its poison.
_MATCH_BY_DIGEST = """
WITH letters AS (
    SELECT ord, topic_id, queue, digest,
           row_number() OVER (PARTITION BY topic_id, digest ORDER BY ord) AS turn
    FROM incoming
    WHERE queue <> '' AND redrive IS NULL
      AND NOT EXISTS (SELECT FROM poison_failure failure
                      WHERE failure.report_id = incoming.report_id)
), bodies AS (
    SELECT DISTINCT topic_id, queue, digest FROM letters
), sent AS (
    SELECT sent.id, sent.poison_id, sent.topic_id, sent.digest, sent.claimed_at,
           sent.n < known.redrives OR sent.poison_id = ANY(%(sending_poisons)s::int8[])
           AS is_older
    FROM poison_redrive sent JOIN poison_poison known ON known.id = sent.poison_id
    JOIN bodies ON bodies.topic_id = sent.topic_id AND bodies.digest = sent.digest
     AND (sent.queue = '' OR sent.queue = bodies.queue AND sent.bookmark = '')
    WHERE sent.outcome = ANY(%(may_recur)s)
      AND (sent.queue <> '' OR sent.claimed_at >= %(sent_since)s)
    UNION ALL
    SELECT sending.id, sending.poison_id, sending.topic_id, sending.digest, %(now)s,
           false
    FROM unnest(%(sending_ids)s::uuid[], %(sending_poisons)s::int8[],
                %(sending_topics)s::int8[], %(sending_queues)s::text[],
                %(sending_digests)s::bytea[])
         AS sending(id, poison_id, topic_id, queue, digest)
    JOIN bodies ON bodies.topic_id = sending.topic_id
     AND bodies.digest = sending.digest AND sending.queue IN ('', bodies.queue)
), outstanding AS (
    SELECT id, topic_id, digest,
           row_number() OVER (PARTITION BY topic_id, digest
                              ORDER BY is_older, claimed_at, id) AS turn,
           min(poison_id) OVER same < max(poison_id) OVER same AS ambiguous
    FROM sent
    WHERE NOT EXISTS (SELECT FROM incoming other WHERE other.redrive = sent.id)
    WINDOW same AS (PARTITION BY topic_id, digest)
)
UPDATE incoming SET redrive = outstanding.id, ambiguous = outstanding.ambiguous
FROM letters JOIN outstanding USING (topic_id, digest, turn)
WHERE incoming.ord = letters.ord
"""

_BODIES_WITHOUT_REDRIVE = """
SELECT DISTINCT topic_id, digest FROM incoming WHERE queue <> '' AND redrive IS NULL
"""


def match(cursor: CursorWrapper, *, now: datetime) -> bool:
    """Set the redrive of staged dead letters that answer one; tell if any did."""

    def execute(statement: str, values: Mapping[str, Any] | None = None) -> int:
        cursor.execute(statement, values)
        return int(cursor.rowcount)

    is_any_sent = execute(_ANY_UNMARKED) > 0
    execute(_BODIES_WITHOUT_REDRIVE)
    sending = sends.unmarked_sends(
        [(topic, bytes(digest)) for topic, digest in cursor.fetchall()],
        unmarked=brokers.topics_without_headers(),
    )
    if not is_any_sent and not sending:
        return False
    values = {
        "now": now,
        "sent_since": now - OUTSTANDING,
        "may_recur": outcomes_before(RedriveOutcome.RECURRED),
        "sending_ids": [each.redrive for each in sending],
        "sending_poisons": [each.poison for each in sending],
        "sending_topics": [each.topic for each in sending],
        "sending_queues": [each.queue for each in sending],
        "sending_digests": [each.digest for each in sending],
    }
    matched = execute(_MATCH_BY_PLACE, values) if is_any_sent else 0
    matched += execute(_MATCH_BY_IDENTITY, values) if sending else 0
    return matched + execute(_MATCH_BY_DIGEST, values) > 0
