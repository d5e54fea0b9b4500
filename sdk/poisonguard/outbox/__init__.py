"""Transactional outbox: messages leave the producer's database at least once.

A producer writes a message into its own Postgres in the transaction that the message
is about; a sweeper sends what is there. See Richardson, Microservices Patterns (2018),
chapter 3. `schema()` in `poisonguard.outbox.postgres_schema` returns the SQL of the
tables.
"""

from __future__ import annotations

from poisonguard.errors import MessageIdTaken, OutboxFull
from poisonguard.outbox.limits import OutboxLimits, TopicLimits
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import Publish, SendKind, SendOutcome
from poisonguard.outbox.producer import Outbox

__all__ = [
    "MessageIdTaken",
    "Outbox",
    "OutboxFull",
    "OutboxLimits",
    "OutboxMessage",
    "Publish",
    "SendKind",
    "SendOutcome",
    "TopicLimits",
]
