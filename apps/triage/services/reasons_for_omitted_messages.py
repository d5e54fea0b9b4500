"""Why an operation does not act on a message, as SQL that judges its poison."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.poison.states import silent_before
from apps.triage.models import Operation
from apps.triage.operation_states import SENDS, Verb

TOO_LARGE = "too large for the broker that would get it"
NO_LIMIT = 2**62

# Clauses of a CASE over `poison_poison`; they need the parameters `reason_values`.
_SENT = """
        WHEN poison_poison.state = 'confirmed' THEN 'already handled'
        WHEN poison_poison.state = 'moved'
             AND poison_poison.moved_to_id = poison_poison.topic_id
             AND EXISTS (
                 SELECT FROM poison_redrive
                 WHERE poison_id = poison_poison.id AND n = poison_poison.redrives
                   AND queue LIKE 'outbox/%%')
        THEN 'its outbox sends it: a requeue makes a second copy'
        WHEN poison_poison.state = 'moved'
             AND poison_poison.moved_to_id = poison_poison.topic_id
        THEN 'given back: its dead-letter queue has it, a requeue makes a second copy'
        WHEN poison_poison.state = 'moved' THEN 'sent to another topic'
        WHEN poison_poison.state = 'redriving' OR poison_poison.state = 'redriven'
             AND poison_poison.sent_at >= %(silent_before)s
        THEN 'already sent, no answer yet'
"""
# Only the body counts: what headers and an encoding add is not in this table. Few
# messages are larger than the smallest limit, so that few topics are looked up.
_TOO_LARGE = f"""
        WHEN poison_poison.size > %(smallest_limit)s::bigint
             AND poison_poison.size > (
                 SELECT limited.most FROM brokers_topic topic
                 JOIN brokers_broker broker ON broker.id = topic.broker_id
                 JOIN unnest(%(kinds)s::text[], %(limits)s::bigint[])
                      AS limited (kind, most) ON limited.kind = broker.kind
                 WHERE topic.id = coalesce(
                     %(target)s::bigint,
                     (SELECT target_id FROM triage_redirect
                      WHERE operation_id = %(operation)s
                        AND topic_id = poison_poison.topic_id),
                     poison_poison.topic_id))
        THEN '{TOO_LARGE}'
"""  # noqa: S608 - made of our own text
REASONS = {
    Verb.REDRIVE: "WHEN poison_poison.state = 'dropped'"
    " THEN 'dropped: restore it first'" + _SENT + _TOO_LARGE,
    Verb.DROP: "WHEN poison_poison.state = 'dropped' THEN 'already dropped'" + _SENT,
    Verb.RESTORE: "WHEN poison_poison.state <> 'dropped' THEN 'not dropped'",
    Verb.GIVE_BACK: "WHEN poison_poison.state <> 'open'"
    " THEN 'not open: ' || poison_poison.state" + _TOO_LARGE,
}


def reason_values(operation: Operation, *, now: datetime) -> dict[str, Any]:
    """Return the parameters of an operation's REASONS.

    Its redirects are stored.
    """
    limits = _largest_bodies(operation)
    return {
        "operation": operation.pk,
        "target": operation.target_topic_id,
        "silent_before": silent_before(now),
        "kinds": list(limits),
        "limits": list(limits.values()),
        "smallest_limit": min(limits.values(), default=NO_LIMIT),
    }


def _largest_bodies(operation: Operation) -> dict[str, int]:
    """Map the kinds of brokers that an operation may send to to their largest body."""
    if operation.verb not in SENDS:
        return {}
    limits = brokers.largest_bodies()
    target = operation.target_topic
    if target is None or target.broker is None:
        return limits
    kind = target.broker.kind
    return {name: most for name, most in limits.items() if name == kind}
