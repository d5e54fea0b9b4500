"""Publish to streams by their names, pipelined, each message confirmed or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.adapters.redis_streams.entries import join_body
from apps.brokers.adapters.redis_streams.redis_connection import (
    Command,
    RedisWire,
    is_passing,
    reason_of,
)
from apps.brokers.adapters.redis_streams.settings import RedisSettings, key, text
from apps.brokers.errors import MaybeSent, NotSent

# Redis' limits of one string and of one command; beyond them it closes the connection,
# with every other message on it.
LARGEST_STRING = 512 * 2**20
MOST_FIELDS = 500_000


class RedisPublisher:
    """Publisher by XADD; Redis' reply with the new id is the confirmation."""

    def __init__(self, settings: RedisSettings) -> None:
        self._wire = RedisWire(settings.url, dial=settings.dial)
        self._body_field = key(settings.body_field)

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        """Add the messages to their streams; return outcomes in order."""
        plans = [self._command_or_outcome(message) for message in messages]
        commands = [plan for plan in plans if not isinstance(plan, PublishOutcome)]
        answers = iter(self._send(commands))
        return [
            plan if isinstance(plan, PublishOutcome) else next(answers)
            for plan in plans
        ]

    def close(self) -> None:
        """Close the connection to Redis."""
        self._wire.close()

    def _command_or_outcome(self, message: Outbound) -> Command | PublishOutcome:
        """Build the XADD of a message, or its outcome if Redis cannot take it."""
        if message.is_by_producer and self._has_second_body(message):
            name = text(self._body_field)
            return _refused_outcome(
                f"Consumers would take its header {name!r} for the body: rename it."
            )
        fields = join_body(message.body, message.headers, body_field=self._body_field)
        flat = [part for pair in fields for part in pair]
        if not flat:
            return _refused_outcome(
                "A message without body and headers is no stream entry."
            )
        size = len(message.body) + sum(len(n) + len(v) for n, v in message.headers)
        if len(fields) > MOST_FIELDS or size > LARGEST_STRING:
            return _refused_outcome(
                f"Redis takes {MOST_FIELDS} fields and 512 MB at most."
            )
        return [b"XADD", key(message.topic), b"*", *flat]

    def _has_second_body(self, message: Outbound) -> bool:
        """Tell whether a header has the name of the field of the body."""
        return any(name == self._body_field for name, _ in message.headers)

    def _send(self, commands: Sequence[Command]) -> list[PublishOutcome]:
        """Send Redis the XADDs, return outcomes; raise NotSent if it takes none now."""
        replies = self._wire.pipeline(commands) if commands else []
        if replies and all(is_passing(reply) for reply in replies):
            raise NotSent(f"Redis takes no message now: {reason_of(replies[0])}")
        return [_outcome_of_reply(reply) for reply in replies]


def _outcome_of_reply(reply: Any) -> PublishOutcome:
    """Turn Redis' reply to an XADD into a message's outcome."""
    if isinstance(reply, MaybeSent):
        return PublishOutcome(kind=OutcomeKind.UNKNOWN, detail=str(reply))
    if is_passing(reply):
        # Redis turned the command away before it looked at the message.
        reason = f"Redis takes no message now: {reason_of(reply)}"
        return PublishOutcome(kind=OutcomeKind.UNSENT, detail=reason)
    if isinstance(reply, ResponseError):
        return _refused_outcome(f"Redis refuses it: {reason_of(reply)}")
    return PublishOutcome(kind=OutcomeKind.SENT, bookmark=text(reply))


def _refused_outcome(detail: str) -> PublishOutcome:
    """Return the outcome of a message that Redis does not take."""
    return PublishOutcome(kind=OutcomeKind.REFUSED, detail=detail)
