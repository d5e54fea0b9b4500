"""Publish to queues by their names, pipelined, each message confirmed or refused.

A message goes to the default exchange, persistent and mandatory: RabbitMQ returns one
without a queue before it confirms it, so such a message never counts as sent.

A malformed message closes the channel, and the confirmations of the messages before it
are lost. Then a rehearsal sends the unconfirmed messages to a queue that does not
exist: the broker checks each as usual and stores none. A message that closes the
channel there alone is refused, in the broker's words; the others are sent. So a message
is sent twice only if it was unconfirmed at the break (at most `IN_FLIGHT` are), and a
confirmed one never.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, takewhile
from uuid import uuid4

from pika import spec

from apps.brokers.adapter_contract import Outbound, OutcomeKind, PublishOutcome
from apps.brokers.adapters.rabbitmq import amqp_properties as properties
from apps.brokers.adapters.rabbitmq.address_and_queues import RabbitAddress, is_name
from apps.brokers.adapters.rabbitmq.amqp_connection import (
    FRAME_OVERHEAD,
    RabbitArrival,
    RabbitRejected,
    RabbitWire,
    frame,
)
from apps.brokers.adapters.rabbitmq.amqp_table import AmqpMalformed
from apps.brokers.errors import MaybeSent
from apps.core.errors import Unavailable

MOST_BYTES = 2**27
IN_FLIGHT = 1_000
# So many bytes are kept ready for the socket, filled in steps of so many messages.
AHEAD_BYTES = 2**18
AT_ONCE = 32
CONFIRM_SECONDS = 30.0
# An alarm of the broker may last so long before unconfirmed messages are unknown.
BLOCKED_SECONDS = 5.0
# A connection idle for so long is probed before it gets messages.
RESTED_SECONDS = 1.0

_CONTENT = struct.Struct(">HHQ")
_PROBE = -1


@dataclass(frozen=True, slots=True)
class RabbitParcel:
    """One message as it goes over the wire; `index` is its place in the window."""

    index: int
    queue: str
    properties: bytes
    body: bytes

    def is_what_came_back(self, arrival: RabbitArrival) -> bool:
        """Tell whether a message that RabbitMQ returned equals this one."""
        return (
            self.queue == arrival.method.routing_key
            and self.properties == arrival.properties
            and self.body == arrival.body
        )

    def frames(self, *, largest: int) -> bytes:
        """Encode the AMQP frames that publish the message."""
        content = _CONTENT.pack(spec.Basic.INDEX, 0, len(self.body)) + self.properties
        room = largest - FRAME_OVERHEAD
        parts = (
            self.body[start : start + room] for start in range(0, len(self.body), room)
        )
        return b"".join(
            (
                _publish_frame(self.queue),
                frame(spec.FRAME_HEADER, content),
                *(frame(spec.FRAME_BODY, part) for part in parts),
            )
        )


class RabbitChannel:
    """A channel in confirm mode, and its messages in flight."""

    def __init__(self, wire: RabbitWire) -> None:
        self.returns = 0
        self._wire = wire
        self._nowhere = f"poisonweb.nowhere.{uuid4()}"
        self._last = 0
        self._waiting: dict[int, RabbitParcel] = {}
        self._returned: dict[int, str] = {}
        wire.open_channel()
        wire.call(spec.Confirm.Select(), spec.Confirm.SelectOk)

    def probe(self) -> None:
        """Check with a message to no queue that the broker takes messages now.

        The broker reports an alarm only when it gets a message, and then handles
        nothing that follows while the alarm lasts. The call after the message detects
        that.
        """
        self._write([RabbitParcel(_PROBE, self._nowhere, b"\0\0", b"")])
        self._wire.call(spec.Basic.Qos(), spec.Basic.QosOk)

    def rehearse(self, parcels: Sequence[RabbitParcel]) -> None:
        """Let RabbitMQ check messages by sending them to no queue: it stores none."""
        self.send([replace(one, queue=self._nowhere) for one in parcels], {}, set())

    def send(
        self,
        parcels: Sequence[RabbitParcel],
        outcomes: dict[int, PublishOutcome],
        written: set[int],
    ) -> None:
        """Send all messages, and set each outcome as soon as the broker confirms it.

        Raises `RabbitRejected` or `MaybeSent`. The broker may then have messages of
        `written` that have no outcome; it has none of the others.
        """
        ahead = _recording_written(parcels, written)
        until = time.monotonic() + CONFIRM_SECONDS
        while self._write_until_full(ahead) or self._waiting:
            unwritten = self._wire.unwritten
            if not self._take_arrivals(outcomes):
                self._wire.turn(wait=BLOCKED_SECONDS)
            if self._take_arrivals(outcomes) or self._wire.unwritten != unwritten:
                until = time.monotonic() + self._timeout
            elif time.monotonic() > until:
                why = self._wire.blocked or "it confirms nothing"
                raise MaybeSent(f"{self._wire.server} takes no message: {why}.")

    @property
    def _timeout(self) -> float:
        """Return how long to wait for a confirm: longer while the broker blocks."""
        return BLOCKED_SECONDS if self._wire.blocked else CONFIRM_SECONDS

    def _write_until_full(self, ahead: Iterator[RabbitParcel]) -> bool:
        """Write messages to RabbitMQ until enough are in flight; False at the end."""
        while self._wire.unwritten < AHEAD_BYTES:
            room = min(IN_FLIGHT - len(self._waiting), AT_ONCE)
            batch = list(islice(ahead, room))
            if not batch:
                return False
            self._write(batch)
        return True

    def _write(self, batch: Sequence[RabbitParcel]) -> None:
        """Write messages, and note under which tag each waits for its confirm."""
        largest = self._wire.largest_frame
        for parcel in batch:
            self._last += 1
            self._waiting[self._last] = parcel
        self._wire.write(b"".join(one.frames(largest=largest) for one in batch))

    def _take_arrivals(self, outcomes: dict[int, PublishOutcome]) -> bool:
        """Take the broker's confirms and returns; tell whether there was any."""
        some = False
        while (arrival := self._wire.next()) is not None:
            self._take(arrival, outcomes)
            some = True
        return some

    def _take(
        self, arrival: RabbitArrival, outcomes: dict[int, PublishOutcome]
    ) -> None:
        """Set the outcomes that RabbitMQ's confirm decides, or note a return."""
        match arrival.method:
            case spec.Basic.Return():
                self._take_return(arrival)
            case spec.Basic.Ack(delivery_tag=tag, multiple=multiple):
                for one in self._settled_tags(tag, multiple=multiple):
                    self._set_outcome(one, _SENT, outcomes)
            case spec.Basic.Nack(delivery_tag=tag, multiple=multiple):
                for one in self._settled_tags(tag, multiple=multiple):
                    self._set_outcome(one, _NOT_TAKEN, outcomes)
            case _:
                # An alarm or its end: the wire has recorded it.
                pass

    def _set_outcome(
        self, tag: int, outcome: PublishOutcome, outcomes: dict[int, PublishOutcome]
    ) -> None:
        """Set the outcome of the message published under a delivery tag.

        It is `refused` if RabbitMQ returned the message.
        """
        parcel, why = self._waiting.pop(tag), self._returned.pop(tag, "")
        outcomes[parcel.index] = refusal(why) if why else outcome

    def _settled_tags(self, tag: int, *, multiple: bool) -> list[int]:
        """List the tags of waiting messages that a broker's confirm is about."""
        if not multiple:
            return [tag] if tag in self._waiting else []
        last = tag or self._last
        # They wait in the order of their tags: those behind it are not looked at.
        return list(takewhile(last.__ge__, self._waiting))

    def _take_return(self, arrival: RabbitArrival) -> None:
        """Record the first message in flight that equals the returned one."""
        queue = arrival.method.routing_key
        for tag, parcel in self._waiting.items():
            if tag not in self._returned and parcel.is_what_came_back(arrival):
                self._returned[tag] = f"RabbitMQ has no queue {queue} (NO_ROUTE)."
                self.returns += parcel.index != _PROBE
                return
        raise MaybeSent(f"{self._wire.server} returned a message that was never sent.")


class RabbitPublisher:
    """Publisher with one connection, which it opens when it needs it."""

    def __init__(self, address: RabbitAddress) -> None:
        self._address = address
        self._wire: RabbitWire | None = None
        self._channel: RabbitChannel | None = None
        self._written: set[int] = set()

    def publish(self, messages: Sequence[Outbound]) -> list[PublishOutcome]:
        """Send messages to queues; return outcomes in order, each confirmed."""
        if not messages:
            return []
        largest = self._ready_wire().largest_frame
        outcomes: dict[int, PublishOutcome] = {}
        parcels = list[RabbitParcel]()
        for index, message in enumerate(messages):
            try:
                parcels.append(pack(index, message, largest=largest))
            except AmqpMalformed as why:
                outcomes[index] = refusal(f"{why}.")
        self._written = set()
        reason = self._deliver(parcels, outcomes)
        return [
            outcomes.get(index) or self._without_answer(index, reason)
            for index in range(len(messages))
        ]

    def close(self) -> None:
        """Close a redrive's connection to RabbitMQ; the next messages open another."""
        wire, self._wire, self._channel = self._wire, None, None
        if wire is not None:
            wire.close()

    def _deliver(
        self, parcels: list[RabbitParcel], outcomes: dict[int, PublishOutcome]
    ) -> str:
        """Publish messages to RabbitMQ, set outcomes; return why some have none."""
        try:
            try:
                self._send(parcels, outcomes)
            except RabbitRejected:
                unconfirmed = [one for one in parcels if one.index not in outcomes]
                self._send_rehearsed(
                    self._refuse_malformed(unconfirmed, outcomes), outcomes
                )
        except Unavailable as error:
            self.close()
            return str(error)
        return ""

    def _without_answer(self, index: int, reason: str) -> PublishOutcome:
        """Return the outcome of what RabbitMQ did not answer: unknown if written."""
        is_written = index in self._written
        kind = OutcomeKind.UNKNOWN if is_written else OutcomeKind.UNSENT
        return PublishOutcome(kind=kind, detail=reason)

    def _refuse_malformed(
        self, parcels: list[RabbitParcel], outcomes: dict[int, PublishOutcome]
    ) -> list[RabbitParcel]:
        """Find malformed messages of a window by rehearsals; return the harmless ones.

        Splits the window until each malformed message is alone, and sets it refused.
        """
        harmless, parts = list[RabbitParcel](), [parcels]
        while parts:
            part = parts.pop()
            accepted, rejection = self._rehearse(part)
            harmless += part[:accepted]
            if rejection is None:
                continue
            rest = part[accepted:]
            if len(part) == 1:
                outcomes[part[0].index] = refusal(str(rejection))
            elif rest:
                # A closed channel tells which message closed it: the next one.
                half = len(rest) // 2 if rejection.closes_connection else 1
                parts += [some for some in (rest[half:], rest[:half]) if some]
        return harmless

    def _rehearse(
        self, part: Sequence[RabbitParcel]
    ) -> tuple[int, RabbitRejected | None]:
        """Rehearse messages; return how many RabbitMQ took.

        Returns what it said to the next, too.
        """
        channel = self._open_channel()
        before = channel.returns
        try:
            channel.rehearse(part)
        except RabbitRejected as rejection:
            self._channel = None
            return channel.returns - before, rejection
        return len(part), None

    def _send_rehearsed(
        self, parcels: list[RabbitParcel], outcomes: dict[int, PublishOutcome]
    ) -> None:
        """Send RabbitMQ the rehearsed messages together, so that it stores them.

        Sends them singly if even these close the channel.
        """
        try:
            self._send(parcels, outcomes)
        except RabbitRejected:
            for parcel in parcels:
                if parcel.index not in outcomes:
                    self._send_alone(parcel, outcomes)

    def _send_alone(
        self, parcel: RabbitParcel, outcomes: dict[int, PublishOutcome]
    ) -> None:
        """Send one message to RabbitMQ; set it refused if the broker rejects it."""
        try:
            self._send([parcel], outcomes)
        except RabbitRejected as rejection:
            outcomes[parcel.index] = refusal(str(rejection))

    def _send(
        self, parcels: list[RabbitParcel], outcomes: dict[int, PublishOutcome]
    ) -> None:
        """Send messages on RabbitMQ's channel; drop it if a rejection closes it."""
        channel = self._open_channel()
        try:
            channel.send(parcels, outcomes, self._written)
        except RabbitRejected:
            self._channel = None
            raise

    def _ready_wire(self) -> RabbitWire:
        """Return a connection that takes messages; raise `Unavailable` without one."""
        try:
            if self._wire is not None and self._wire.rested > RESTED_SECONDS:
                self._open_channel().probe()
            elif self._wire is not None:
                self._wire.turn(wait=0)
        except Unavailable:
            # It broke while idle, with no message under way: open another.
            self.close()
        return self._open_wire()

    def _open_wire(self) -> RabbitWire:
        """Return a connection to RabbitMQ that passed its probe, perhaps a new one."""
        if self._wire is not None and self._wire.is_open:
            return self._wire
        self.close()
        self._wire = RabbitWire(self._address)
        try:
            self._channel = RabbitChannel(self._wire)
            self._channel.probe()
        except (RabbitRejected, Unavailable):
            self.close()
            raise
        return self._wire

    def _open_channel(self) -> RabbitChannel:
        """Return the open channel to RabbitMQ, or a new one."""
        wire = self._open_wire()
        if self._channel is None:
            self._channel = RabbitChannel(wire)
        return self._channel


def pack(index: int, message: Outbound, *, largest: int) -> RabbitParcel:
    """Encode a message as AMQP; raise `AmqpMalformed` where AMQP cannot carry it."""
    if not is_name(message.topic):
        raise AmqpMalformed("the name of a queue has 1 to 255 bytes")
    if len(message.body) > MOST_BYTES:
        raise AmqpMalformed(f"RabbitMQ takes {MOST_BYTES:,} bytes at most")
    parcel = RabbitParcel(
        index, message.topic, properties.encode(message.headers), message.body
    )
    room = largest - FRAME_OVERHEAD - _CONTENT.size
    if len(parcel.properties) > room:
        size = f"its headers take {len(parcel.properties):,} bytes"
        raise AmqpMalformed(f"{size}, and this RabbitMQ takes {room:,} at most")
    return parcel


def _recording_written(
    parcels: Sequence[RabbitParcel], written: set[int]
) -> Iterator[RabbitParcel]:
    """Yield RabbitMQ's messages; add the index of each to `written` before that."""
    for parcel in parcels:
        written.add(parcel.index)
        yield parcel


def refusal(reason: str) -> PublishOutcome:
    """Return the outcome of a message that RabbitMQ does not take."""
    return PublishOutcome(kind=OutcomeKind.REFUSED, detail=reason)


_SENT = PublishOutcome(kind=OutcomeKind.SENT)
_NOT_TAKEN = refusal(
    "RabbitMQ did not take it (nack): its queue is full, as a rule, or unavailable."
)


@lru_cache(maxsize=256)
def _publish_frame(queue: str) -> bytes:
    """Encode the AMQP frame of the method that publishes to a queue."""
    method = spec.Basic.Publish(exchange="", routing_key=queue, mandatory=True)
    payload = method.INDEX.to_bytes(4, "big") + b"".join(method.encode())
    return frame(spec.FRAME_METHOD, payload)
