"""Publish to RabbitMQ's queues by their names, a window at a time, with confirms.

A message has its id in the property `message_id`, and is persistent. Headers whose
names begin with `amqp.` are properties, as `poisonguard.readers.amqp` writes them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

try:
    import pika
    from pika import spec
    from pika.exceptions import AMQPError
except ImportError as missing:
    raise ImportError(
        "poisonguard.outbox.publishers.pika needs pika: pip install 'poisonguard[pika]'"
    ) from missing

from poisonguard.errors import Away
from poisonguard.outbox.message import OutboxMessage
from poisonguard.outbox.outcome import SendKind, SendOutcome

OPEN_SECONDS, CONFIRM_SECONDS, CLOSE_SECONDS = 10.0, 30.0, 2.0
SHORT_TEXT = 255  # bytes
PREFIX = "amqp."
PROPERTIES = frozenset(
    {
        *("content_type", "content_encoding", "correlation_id", "reply_to"),
        *("expiration", "type", "app_id"),
    }
)
PERSISTENT = 2
MessageKey = tuple[str, str, bytes]
SENT = SendOutcome(kind=SendKind.SENT)
# The loop does not run between windows, so nothing would answer heartbeats.
TCP_OPTIONS = {
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 2,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 11_000,
}


class PikaPublisher:
    """Send with one connection, which it opens when it needs it."""

    def __init__(self, url: str) -> None:
        self._parameters = pika.URLParameters(url)
        self._parameters.heartbeat = 0
        self._parameters.tcp_options = TCP_OPTIONS
        self._parameters.socket_timeout = OPEN_SECONDS
        self._parameters.stack_timeout = OPEN_SECONDS
        self._channel: ConfirmingChannel | None = None

    def __call__(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        refused = {i: text for i, m in enumerate(batch) if (text := unfit(m))}
        fit = [m for i, m in enumerate(batch) if i not in refused]
        answers = iter(self._publish(fit) if fit else ())
        return [
            SendOutcome(kind=SendKind.REFUSED, detail=refused[place])
            if place in refused
            else next(answers)
            for place in range(len(batch))
        ]

    def close(self) -> None:
        """Close the publisher's connection to RabbitMQ."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _publish(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        channel = self._channel
        if channel is not None and not channel.is_open():
            self.close()
        if self._channel is None:
            self._channel = ConfirmingChannel(self._parameters)
        outcomes = self._channel.publish(batch)
        if not self._channel.is_open():
            self.close()
        return outcomes


class ConfirmingChannel:
    """A connection with a channel in confirm mode; closed for good by any error."""

    def __init__(self, parameters: Any) -> None:
        self._error = ""
        self._channel: Any = None
        self._is_ready = False
        self._outcomes: dict[int, SendOutcome] = {}
        self._messages: list[OutboxMessage] = []
        self._returned: dict[int, str] = {}
        self._places: dict[MessageKey, deque[int]] = {}
        self._is_closing = False
        self._first_tag = 1
        self._is_done: Callable[[], bool] = lambda: False
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._open_channel,
            on_open_error_callback=self._note_end,
            on_close_callback=self._note_end,
        )
        self._run(lambda: self._is_ready, seconds=OPEN_SECONDS)
        if not self._is_ready:
            self.close()
            raise Away(f"RabbitMQ is away: {self._error or 'it does not answer'}")

    def is_open(self) -> bool:
        """Handle what RabbitMQ sent; tell whether the channel can be used."""
        self._run(lambda: False, seconds=0.001)
        return not self._error

    def publish(self, batch: Sequence[OutboxMessage]) -> list[SendOutcome]:
        """Publish messages to RabbitMQ's queues; return the outcome of each."""
        self._messages, self._outcomes, self._returned = list(batch), {}, {}
        self._places = {}
        for message in batch:
            self._channel.basic_publish(
                "", message.topic, message.body, properties(message), mandatory=True
            )
        self._run(lambda: len(self._outcomes) == len(batch), seconds=CONFIRM_SECONDS)
        self._first_tag += len(batch)
        if len(self._outcomes) < len(batch):
            self._error = self._error or "RabbitMQ confirms nothing"
        unknown = SendOutcome(kind=SendKind.UNKNOWN, detail=self._error)
        return [self._outcomes.get(place, unknown) for place in range(len(batch))]

    def close(self) -> None:
        """Close the connection to RabbitMQ, without waiting for long."""
        self._is_closing = True
        if self._connection.is_open:
            self._connection.close()
        self._run(lambda: self._connection.is_closed, seconds=CLOSE_SECONDS)
        self._connection.ioloop.close()

    def _run(self, is_done: Callable[[], bool], *, seconds: float) -> None:
        """Run pika's loop until work is done, an error or so many seconds later."""
        loop, until = self._connection.ioloop, time.monotonic() + seconds
        while not (is_done() or self._has_failed) and time.monotonic() < until:
            timer = loop.call_later(min(0.05, seconds), loop.stop)
            self._is_done = is_done
            loop.start()
            loop.remove_timeout(timer)

    @property
    def _has_failed(self) -> bool:
        return bool(self._error) and not self._is_closing

    def _stop_loop_if_done(self) -> None:
        """Stop pika's loop where it has done what it runs for, or has failed."""
        if self._has_failed or self._is_done():
            self._connection.ioloop.stop()

    def _open_channel(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._confirm)

    def _confirm(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._note_end)
        channel.add_on_return_callback(self._take_return)
        channel.confirm_delivery(self._take_confirm, self._note_ready)

    def _note_ready(self, _frame: Any) -> None:
        self._is_ready = True
        self._stop_loop_if_done()

    def _note_end(self, _source: Any, error: Any) -> None:
        self._error = self._error or f"{type(error).__name__}: {error}"
        self._stop_loop_if_done()

    def _take_return(
        self, _channel: Any, method: Any, properties_: Any, body: bytes
    ) -> None:
        """Note the returned message, which has no queue: its confirm comes next."""
        key = method.routing_key, properties_.message_id, body
        places = self._places_by_message().get(key, deque())
        while places:
            place = places.popleft()
            if place not in self._outcomes:
                text = f"RabbitMQ has no queue {key[0]}: {method.reply_text}"
                self._returned[place] = text
                return

    def _places_by_message(self) -> dict[MessageKey, deque[int]]:
        """Return the batch places of messages that RabbitMQ has not returned.

        They are by topic, message id and body.
        """
        if not self._places:
            for place, message in enumerate(self._messages):
                key = message.topic, message.message_id, message.body
                self._places.setdefault(key, deque()).append(place)
        return self._places

    def _take_confirm(self, frame: Any) -> None:
        last = frame.method.delivery_tag - self._first_tag
        is_taken = isinstance(frame.method, spec.Basic.Ack)
        for place in range(0 if frame.method.multiple else last, last + 1):
            if place >= 0 and place not in self._outcomes:
                self._outcomes[place] = self._outcome(place, is_taken=is_taken)
        self._stop_loop_if_done()

    def _outcome(self, place: int, *, is_taken: bool) -> SendOutcome:
        if place in self._returned:
            return SendOutcome(kind=SendKind.REFUSED, detail=self._returned[place])
        if is_taken:
            return SENT
        detail = "RabbitMQ does not take it now: its queue may be full"
        return SendOutcome(kind=SendKind.UNSENT, detail=detail)


def properties(message: OutboxMessage) -> Any:
    """Return the AMQP properties and headers of an outbox message."""
    own, standard = dict[str, object](), dict[str, str]()
    for name_bytes, value in message.headers:
        name, text = _name(name_bytes), _text(value)
        member = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and member in PROPERTIES and isinstance(text, str):
            standard[member] = text
        else:
            own[name] = text
    return pika.BasicProperties(
        **standard,
        headers=own or None,
        message_id=message.message_id,
        delivery_mode=PERSISTENT,
    )


def unfit(message: OutboxMessage) -> str:
    """Say why AMQP cannot carry a message; "" where it can."""
    names = [name for name, _ in message.headers]
    texts = [message.topic.encode(), message.message_id.encode(), *names]
    if any(len(text) > SHORT_TEXT for text in texts):
        return f"AMQP takes {SHORT_TEXT} bytes of a queue's name, an id or a header"
    if len({_name(name) for name in names}) < len(names):
        return "AMQP takes one header of a name, and a name comes twice"
    try:
        b"".join(properties(message).encode())
    except (AMQPError, ValueError, TypeError, OverflowError) as error:
        return f"AMQP cannot carry it: {error!r}"
    return ""


def _name(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
