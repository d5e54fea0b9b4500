"""The producer's side: messages put in the transaction that they are about."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any
from uuid import UUID

from poisonguard.contract import is_name
from poisonguard.errors import Away, MessageIdTaken, Misconfigured, OutboxFull, Refused
from poisonguard.outbox.backlog_size import (
    CacheKey,
    Measurement,
    check_room,
    measurement,
)
from poisonguard.outbox.connections import connection_of, own_transaction
from poisonguard.outbox.limits import OutboxLimits
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.message_validation import (
    Body,
    Headers,
    check_body,
    check_due,
    check_headers,
    check_key,
    check_message_id,
    check_name,
)
from poisonguard.outbox.outcome import Publish, SendKind, SendOutcome
from poisonguard.outbox.producer_statements import statements_in

DEFAULT_LIMITS = OutboxLimits()
# In seconds, between two looks of `wait_for_room`.
SHORTEST_WAIT = 0.05


class Outbox:
    """The outbox that one connection of the application reaches; it is cheap to make.

    It belongs to the thread of the connection. `producer` names the application:
    message ids are unique for it. `schema` is where the tables are; without one, the
    search path of the connection decides, which must then be that of its role.
    """

    def __init__(
        self,
        connection: Any,
        *,
        producer: str,
        limits: OutboxLimits = DEFAULT_LIMITS,
        schema: str = "",
    ) -> None:
        for name, value, kind in (
            ("producer", producer, str),
            ("limits", limits, OutboxLimits),
            ("schema", schema, str),
        ):
            if not isinstance(value, kind):
                raise Misconfigured(
                    f"Outbox: {name} is {value!r:.80}: give {kind.__name__}."
                )
        if not is_name(producer):
            raise Misconfigured(
                f"Outbox: producer is {producer!r:.80}: give the application's name, 1"
                " to 255 characters without control characters."
            )
        self._connection = connection_of(connection)
        self._producer = producer
        self._limits = limits
        self._limits_backlog = limits.limits_backlog
        self._schema = schema
        self._statements = statements_in(schema)
        self._cache_key: CacheKey | None = None

    def put(
        self,
        topic: str,
        body: Body,
        *,
        headers: Headers = (),
        key: str = "",
        message_id: str | UUID | None = None,
        due_at: datetime | None = None,
    ) -> str:
        """Write a message to the outbox in the open transaction; return its id.

        It is sent after the commit, and not before `due_at`; a connection that commits
        each statement by itself commits it at once. Raises Refused for a message that
        cannot be sent, OutboxFull, and MessageIdTaken.
        """
        message = self._message(
            topic, body, headers=headers, key=key, message_id=message_id
        )
        self._put(message, check_due(due_at))
        return message.message_id

    def send_or_put(
        self,
        publish: Publish,
        topic: str,
        body: Body,
        *,
        headers: Headers = (),
        key: str = "",
        message_id: str | UUID | None = None,
    ) -> str:
        """Publish a message at once, or put it into the outbox; return its id.

        Only outside a transaction: what belongs to one is `put` in it. While messages
        of its topic and key wait, it is written behind them. Where the broker may have
        it, it is written under the same id, so that a consumer can recognise the copy.
        Raises Refused if the broker will never take it.
        """
        self._refuse_transaction("send_or_put", "put what belongs to it in it")
        message = self._message(
            topic, body, headers=headers, key=key, message_id=message_id
        )
        if self._is_waiting(message):
            self._put_alone(message)
        elif (outcome := _publish_one(publish, message)).kind is SendKind.REFUSED:
            raise Refused(
                f"Outbox: the broker refuses message {message.message_id!r} for topic"
                f" {topic!r}: {outcome.detail}"
            )
        elif outcome.kind is not SendKind.SENT:
            self._put_unsent(message, outcome)
        return message.message_id

    def wait_for_room(self, topic: str, timeout: float) -> bool:
        """Wait until the outbox has room for a topic; false after `timeout` seconds.

        Only outside a transaction, which would hold its locks meanwhile.
        """
        self._refuse_transaction("wait_for_room", "call it before you begin one")
        check_name("topic", topic)
        deadline = time.monotonic() + _seconds(timeout)
        while (pause := self._lack_of_room(topic)) is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            time.sleep(min(remaining, pause))
        return True

    def _lack_of_room(self, topic: str) -> float | None:
        """Return the seconds until the outbox may have room; None if it has some."""
        if not self._limits_backlog:
            return None
        with own_transaction(self._connection):
            figures = self._figures()
        try:
            check_room(self._limits, topic, figures)
        except OutboxFull:
            return max(SHORTEST_WAIT, figures.expires_at - time.monotonic())
        return None

    def _message(
        self, topic: str, body: Body, *, headers: Headers, key: str, message_id: Any
    ) -> OutboxMessage:
        """Build an outbox message; raise Refused for one that cannot be sent."""
        name = check_name("topic", topic)
        return OutboxMessage(
            producer=self._producer,
            message_id=check_message_id(message_id),
            topic=name,
            body=check_body(body, topic=name, max_body=self._limits.max_body_of(name)),
            headers=check_headers(headers),
            key=check_key(key),
        )

    def _put(self, message: OutboxMessage, due_at: datetime | None = None) -> None:
        """Insert a message into the outbox; raise OutboxFull if there is no room.

        Raises MessageIdTaken, or Refused, if the table does not take the message.
        """
        if self._limits_backlog:
            check_room(self._limits, message.topic, self._figures())
        rows = self._connection.fetch(
            self._statements.insert,
            *(message.producer, message.message_id, *_contents(message), due_at),
        )
        if not rows:
            raise self._explain_conflict(message)

    def _put_alone(self, message: OutboxMessage) -> None:
        """Write a producer's message to the outbox in a transaction of its own."""
        with own_transaction(self._connection):
            self._put(message)

    def _put_unsent(self, message: OutboxMessage, outcome: SendOutcome) -> None:
        """Write a message to the outbox that the broker may not have."""
        try:
            self._put_alone(message)
        except Exception as error:
            error.add_note(
                f"Message {message.message_id!r} is not in the outbox, and the broker"
                f" {'may have' if outcome.kind is SendKind.UNKNOWN else 'lacks'} it:"
                f" {outcome.detail}"
            )
            raise

    def _figures(self) -> Measurement:
        """Return the backlog figures of the producer's outbox, up to a second old."""
        if self._cache_key is None:
            self._cache_key = (*self._connection.identity(), self._schema)
        return measurement(self._cache_key, self._connection, self._statements)

    def _is_waiting(self, message: OutboxMessage) -> bool:
        """Tell whether a producer's message must wait behind others of its key.

        They are outbox messages of its topic and key, which are to be sent first.
        """
        with own_transaction(self._connection):
            ((is_waiting,),) = self._connection.fetch(
                self._statements.is_waiting, message.topic, message.key
            )
        return bool(is_waiting)

    def _explain_conflict(self, message: OutboxMessage) -> MessageIdTaken | Refused:
        """Compare a message with the row of its id; return the error to raise."""
        rows = self._connection.fetch(
            self._statements.compare,
            *(*_contents(message), message.producer, message.message_id),
        )
        if not rows:
            return Refused(
                "Outbox: the table has not taken the message: a trigger, a rule or an"
                " index of yours on poisonguard_outbox prevents it."
            )
        is_same = bool(rows[0][0])
        advice = (
            "it is this very message, so it is done"
            if is_same
            else "it is another message: leave message_id out, and a new one is made"
        )
        return MessageIdTaken(
            f"Outbox: producer {message.producer!r} has put a message under the id"
            f" {message.message_id!r} already: {advice}. Nothing was written, and the"
            " transaction can go on.",
            message_id=message.message_id,
            is_same=is_same,
        )

    def _refuse_transaction(self, method: str, remedy: str) -> None:
        if self._connection.is_in_transaction():
            raise Misconfigured(
                f"Outbox: {method} inside a transaction: {remedy}. A connection that"
                " does not commit by itself has one from its first statement on."
            )


def _contents(message: OutboxMessage) -> tuple[object, ...]:
    """Return a message's topic, key, body and headers as an outbox's SQL takes them."""
    headers = [part for header in message.headers for part in header]
    return message.topic, message.key, message.body, headers


def _seconds(timeout: object) -> float:
    """Return a time-out in seconds that ends; raise Misconfigured for any other."""
    if isinstance(timeout, int | float) and 0 <= timeout < threading.TIMEOUT_MAX:
        return float(timeout)
    raise Misconfigured(f"Outbox: timeout is {timeout!r}: give seconds, 0 or more.")


def _publish_one(publish: Publish, message: OutboxMessage) -> SendOutcome:
    """Return the outcome of publishing one message; unsent if the broker is away."""
    try:
        outcomes = publish([message])
    except Away as error:
        return SendOutcome(kind=SendKind.UNSENT, detail=str(error))
    match outcomes:
        case [SendOutcome() as outcome]:
            return outcome
        case _:
            raise Misconfigured(
                f"Outbox: publish answers {outcomes!r:.80}: return a list with one"
                f" SendOutcome. Whether the broker has message {message.message_id!r}"
                " is not certain."
            )
