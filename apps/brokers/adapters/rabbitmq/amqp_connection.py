"""An AMQP 0-9-1 connection to RabbitMQ with one channel, which keeps every byte.

It uses only the protocol's grammar of pika (`pika.spec`). pika's connections convert
tables to dicts, which loses repeated names, widths of numbers and fractions; and when a
channel closes, they drop the confirmations before that. So properties stay bytes here,
and everything received is returned before the error is raised.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from pika import spec

from apps.brokers.adapters.rabbitmq.address_and_queues import RabbitAddress
from apps.brokers.adapters.rabbitmq.transport import RabbitLink
from apps.brokers.errors import MaybeSent, NotSent, Rejected
from apps.core.errors import Refused, Unavailable

REPLY_SECONDS = 20.0
GOODBYE_SECONDS = 2.0
# We send these; either side gives up after two intervals of silence.
HEARTBEAT = 60
CHANNEL = 1
LARGEST_FRAME = 2**17
FRAME_OVERHEAD = 8

_FRAME = struct.Struct(">BHI")
_METHOD = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")
_FRAME_END = bytes([spec.FRAME_END])
_PROTOCOL = b"AMQP\0\0\x09\x01"
# The server shuts down or was told to close: no verdict on our call.
_CONNECTION_FORCED = 320
_NOT_FOUND = 404
_NO_QUEUE = "no queue"

_WHO_WE_ARE = {
    "product": "Poisonweb",
    "connection_name": "poisonweb",
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "connection.blocked": True,
        "consumer_cancel_notify": True,
        "publisher_confirms": True,
    },
}


@dataclass(frozen=True, slots=True)
class RabbitArrival:
    """A method from the broker, with its content where it has one."""

    method: Any  # of pika.spec, which leaves them untyped
    properties: bytes = b""
    body: bytes = b""


class RabbitRejected(Rejected):
    """The broker closed the channel or the whole connection, with a reason."""

    def __init__(self, server: str, close: Any, *, closes_connection: bool) -> None:
        self.code: int = close.reply_code
        self.words = text_of(close.reply_text)
        self.closes_connection = closes_connection
        super().__init__(f"{server} says: {self.words}")

    @property
    def names_no_queue(self) -> bool:
        """Tell whether RabbitMQ refused a call because the queue does not exist."""
        return self.code == _NOT_FOUND and _NO_QUEUE in self.words


@dataclass(slots=True)
class _Content:
    """The frames so far of a method with content."""

    method: Any
    properties: bytes
    size: int
    parts: list[bytes]
    remaining: int


class RabbitWire:
    """One connection with one channel, for one thread."""

    def __init__(self, address: RabbitAddress) -> None:
        self.server = address.server
        self.blocked = ""
        self.version = ""
        self.largest_frame = LARGEST_FRAME
        self.is_open = self.has_channel = False
        self._buffer = bytearray()
        self._arrived: deque[RabbitArrival | Exception] = deque()
        self._content: _Content | None = None
        self._link = RabbitLink(address)
        self._sent_at = self._heard_at = time.monotonic()
        try:
            self._handshake(address)
        except RabbitRejected as refusal:
            self._link.close()
            raise NotSent(str(refusal)) from refusal
        except BaseException:
            self._link.close()
            raise

    @property
    def tls(self) -> str:
        """Return the version of TLS of the connection to RabbitMQ, "" without it."""
        return self._link.tls

    @property
    def unwritten(self) -> int:
        """Count the bytes that the connection to RabbitMQ still has to send."""
        return self._link.unwritten

    @property
    def rested(self) -> float:
        """Return the seconds since RabbitMQ last sent anything."""
        return time.monotonic() - self._heard_at

    def open_channel(self) -> None:
        """Open the connection's only channel unless it is open."""
        if not self.has_channel:
            self.call(spec.Channel.Open(), spec.Channel.OpenOk)
            self.has_channel = True

    def send(self, method: Any, *, channel: int = CHANNEL) -> None:
        """Write an AMQP method, without waiting for an answer."""
        payload = _METHOD.pack(method.INDEX) + b"".join(method.encode())
        self.write(frame(spec.FRAME_METHOD, payload, channel=channel))

    def write(self, frames: bytes) -> None:
        """Queue AMQP frames to be sent, and note the time for the heartbeat."""
        self._link.write(frames)
        self._sent_at = time.monotonic()

    def call(self, method: Any, answer: type, *, channel: int = CHANNEL) -> Any:
        """Send an AMQP method, return its answer; queue other arrivals for later."""
        self.send(method, channel=channel)
        return self.answer(answer)

    def answer(self, kind: type, *, within: float = REPLY_SECONDS) -> Any:
        """Wait for an AMQP method of this kind; queue other arrivals for later."""
        others = list[RabbitArrival]()
        until = time.monotonic() + within
        try:
            while (remaining := until - time.monotonic()) > 0:
                arrival = self.receive(wait=remaining)
                if arrival is not None and isinstance(arrival.method, kind):
                    return arrival.method
                others += [arrival] if arrival else []
                if self.blocked:
                    raise Unavailable(
                        f"{self.server} takes no message: {self.blocked}."
                    )
        finally:
            self._arrived.extendleft(reversed(others))
        raise self._lost_error(
            f"no {kind.__qualname__} came within {within:g} seconds."
        )

    def receive(self, *, wait: float) -> RabbitArrival | None:
        """Return the broker's next method or message; None when none comes in time.

        Raises `RabbitRejected` or `MaybeSent` after all that came before it.
        """
        until = time.monotonic() + wait
        while (arrival := self.next()) is None:
            remaining = until - time.monotonic()
            self.turn(wait=max(0.0, remaining))
            if remaining <= 0:
                return self.next()
        return arrival

    def next(self) -> RabbitArrival | None:
        """Return the broker's next method or message if it is already here, or None.

        Raises as `receive` does.
        """
        arrival = self._arrived.popleft() if self._arrived else None
        if isinstance(arrival, Exception):
            raise arrival
        return arrival

    def turn(self, *, wait: float) -> None:
        """Exchange bytes with the broker; wait until the socket can send or receive."""
        now = time.monotonic()
        if now - self._sent_at > HEARTBEAT / 2 and self.is_open:
            self.write(frame(spec.FRAME_HEARTBEAT, b"", channel=0))
        try:
            data = self._link.turn(wait=min(wait, HEARTBEAT / 4))
        except MaybeSent as lost:
            self._end_with(lost)
            return
        if data:
            self._heard_at = time.monotonic()
            self._split_frames(data)
        elif self.rested > 2 * HEARTBEAT:
            self._end_with(self._lost_error("it stopped sending heartbeats."))

    def close(self) -> None:
        """Close the connection; a broker that answers returned unsettled messages."""
        try:
            if self.is_open and not self.blocked:
                self.send(spec.Connection.Close(200, "Goodbye", 0, 0), channel=0)
                self.answer(spec.Connection.CloseOk, within=GOODBYE_SECONDS)
        except (Refused, Unavailable):
            # The connection is already closed.
            self.is_open = False
        finally:
            self.is_open = self.has_channel = False
            self._link.close()

    def _handshake(self, address: RabbitAddress) -> None:
        """Log in to RabbitMQ, open the virtual host, agree on the size of frames."""
        self._link.write(_PROTOCOL)
        start = self.answer(spec.Connection.Start)
        server = start.server_properties
        self.version = (
            f"{server.get('product', 'AMQP')} {server.get('version', '')}".strip()
        )
        self.send(
            spec.Connection.StartOk(
                _WHO_WE_ARE, "PLAIN", f"\0{address.user}\0{address.password}", "en_US"
            ),
            channel=0,
        )
        tune = self.answer(spec.Connection.Tune)
        self.largest_frame = tune.frame_max or LARGEST_FRAME
        self.send(
            spec.Connection.TuneOk(tune.channel_max, self.largest_frame, HEARTBEAT),
            channel=0,
        )
        self.call(
            spec.Connection.Open(address.vhost), spec.Connection.OpenOk, channel=0
        )
        self.is_open = True

    def _end_with(self, error: Exception) -> None:
        """Close the link to RabbitMQ; queue the error behind all earlier arrivals."""
        self.is_open = self.has_channel = False
        self._link.close()
        self._arrived.append(error)

    def _split_frames(self, data: bytes) -> None:
        """Cut the bytes received into AMQP frames, and take each frame."""
        self._buffer += data
        offset = 0
        while len(self._buffer) - offset >= FRAME_OVERHEAD:
            kind, channel, size = _FRAME.unpack_from(self._buffer, offset)
            start, end = offset + _FRAME.size, offset + FRAME_OVERHEAD + size
            if end > len(self._buffer):
                break
            self._take_frame(kind, channel, bytes(self._buffer[start : end - 1]))
            offset = end
        del self._buffer[:offset]

    def _take_frame(self, kind: int, channel: int, payload: bytes) -> None:
        """Take an AMQP frame: a method, or a part of a message's content."""
        if kind == spec.FRAME_METHOD:
            self._take_method(channel, payload)
        elif kind == spec.FRAME_HEADER and self._content is not None:
            _, _, size = _CONTENT.unpack_from(payload)
            self._content.properties = payload[_CONTENT.size :]
            self._content.size = self._content.remaining = size
            self._finish_content()
        elif kind == spec.FRAME_BODY and self._content is not None:
            self._content.parts.append(payload)
            self._content.remaining -= len(payload)
            self._finish_content()

    def _take_method(self, channel: int, payload: bytes) -> None:
        """Decode an AMQP method, answer a close, and queue the arrival."""
        (index,) = _METHOD.unpack_from(payload)
        method = spec.methods[index]().decode(payload, _METHOD.size)
        if spec.has_content(index):
            self._content = _Content(method, b"", 0, [], 0)
        elif isinstance(method, spec.Connection.Close):
            self._take_close(method)
        elif isinstance(method, spec.Channel.Close):
            self.has_channel = False
            self.send(spec.Channel.CloseOk(), channel=channel)
            self._arrived.append(
                RabbitRejected(self.server, method, closes_connection=False)
            )
        else:
            self._take_blocking(method)
            self._arrived.append(RabbitArrival(method))

    def _take_blocking(self, method: Any) -> None:
        """Note whether the broker blocks publishers, and why."""
        if isinstance(method, spec.Connection.Blocked):
            self.blocked = text_of(method.reason) or "an alarm"
        elif isinstance(method, spec.Connection.Unblocked):
            self.blocked = ""

    def _take_close(self, close: Any) -> None:
        """Answer the broker's close, and queue its reason as an error."""
        error: Exception = RabbitRejected(self.server, close, closes_connection=True)
        if close.reply_code == _CONNECTION_FORCED:
            error = self._lost_error(text_of(close.reply_text))
        self._link.write(
            frame(
                spec.FRAME_METHOD,
                _METHOD.pack(spec.Connection.CloseOk.INDEX),
                channel=0,
            )
        )
        try:
            self._link.turn(wait=0)
        except MaybeSent:
            # The CloseOk is only a courtesy.
            self.is_open = False
        self._end_with(error)

    def _finish_content(self) -> None:
        """Queue the arrival of a message once its body is whole."""
        content = self._content
        if content is not None and content.remaining <= 0:
            body = (
                content.parts[0] if len(content.parts) == 1 else b"".join(content.parts)
            )
            self._arrived.append(
                RabbitArrival(content.method, content.properties, body)
            )
            self._content = None

    def _lost_error(self, why: str) -> MaybeSent:
        """Build the error of a lost connection to RabbitMQ."""
        return MaybeSent(f"{self.server} is away: {why}")


def frame(kind: int, payload: bytes, *, channel: int = CHANNEL) -> bytes:
    """Encode a frame of AMQP: its kind, channel and payload."""
    return _FRAME.pack(kind, channel, len(payload)) + payload + _FRAME_END


def text_of(value: str | bytes | None) -> str:
    """Decode AMQP's short text, which pika leaves as bytes if it is not UTF-8."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else value or ""
    return " ".join(text.split())
