"""Why an operation does not act on a message, as SQL that judges its poison."""

from __future__ import annotations

from apps.triage.operation_states import Verb

# Clauses of a CASE over `poison_poison`; it needs the parameter `silent_before`.
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
REASONS = {
    Verb.REDRIVE: "WHEN poison_poison.state = 'dropped'"
    " THEN 'dropped: restore it first'" + _SENT,
    Verb.DROP: "WHEN poison_poison.state = 'dropped' THEN 'already dropped'" + _SENT,
    Verb.RESTORE: "WHEN poison_poison.state <> 'dropped' THEN 'not dropped'",
    Verb.GIVE_BACK: "WHEN poison_poison.state <> 'open'"
    " THEN 'not open: ' || poison_poison.state",
}
