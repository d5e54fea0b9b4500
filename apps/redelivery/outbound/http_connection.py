"""One connection to a back end: HTTP/1.1 by h11, with a limit on everything.

h11 is used directly, because clients built on it do not tell when the first byte of a
request leaves, read interim answers (1xx) without end, and take surplus bytes behind
one answer for the next one, so that a delivery would get the answer of another.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

import h11

from apps.brokers.adapter_contract import Header
from apps.redelivery.outbound.errors import OutcomeUnknown
from apps.redelivery.outbound.request_and_answer_headers import (
    MOST_HEADER_BYTES,
    MOST_HEADERS,
)

MOST_INTERIM_ANSWERS = 20
# Bytes that wait to be parsed; beyond, the back end is not read.
READ_AHEAD = 256 * 1024
# Of what the HTTP library says, which may quote a back end.
LOGGED = 300
# A smaller body leaves in one packet with its headers, or in few.
SMALL_BODY = 64 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerHead:
    """Status line and headers of an answer, as they came."""

    status: int
    reason: bytes
    headers: list[Header]


class BackEndConnection(asyncio.Protocol):
    """A connection that carries one call at a time."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(
            h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES
        )
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = self._is_over = self._is_idle = False
        self._error: Exception | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the connection to the back end."""
        # That of uvloop, which uvicorn takes where it is installed, is no subclass.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Store the bytes that came from the back end.

        A back end that speaks unasked loses its connection.
        """
        if self._is_idle:
            self.abort()
            return
        self._received += data
        if len(self._received) > READ_AHEAD and self._transport and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader of the answer that the back end closed the connection."""
        self._is_over, self._error = True, exc
        self._wake()

    # What the caller calls.

    def write(self, request: h11.Request, body: bytes) -> None:
        """Send a request and its body; from here on, its outcome may be unknown."""
        head = self._h11.send(request) or b""
        data = self._h11.send(h11.Data(data=body)) if body else b""
        end = self._h11.send(h11.EndOfMessage()) or b""
        if self._transport is None or self._is_over:
            return  # the reader reports it
        if len(body) < SMALL_BODY:
            self._transport.write(head + (data or b"") + end)
        else:
            self._transport.write(head)
            self._transport.write(data or b"")

    async def read_head(self) -> AnswerHead:
        """Wait for the status and headers of a back end's answer.

        After a cancellation, this can be called again.
        """
        for _ in range(MOST_INTERIM_ANSWERS + 1):
            event = await self._next_event()
            if isinstance(event, h11.Response):
                return _head_of(event)
            if not isinstance(event, h11.InformationalResponse):
                raise OutcomeUnknown("The back end closed the connection unanswered.")
        raise OutcomeUnknown(
            f"The back end sent more than {MOST_INTERIM_ANSWERS} interim answers."
        )

    async def read_piece(self) -> bytes:
        """Wait for the next bytes of an answer's body; b"" is its end."""
        while True:
            event = await self._next_event()
            if isinstance(event, h11.EndOfMessage):
                return b""
            if not isinstance(event, h11.Data):
                raise OutcomeUnknown("The back end broke off its answer.")
            if event.data:
                return bytes(event.data)

    def end_call(self) -> bool:
        """Prepare the connection for its next call; tell whether it can carry one.

        Surplus bytes would be taken for the answer to the next call.
        """
        is_usable = (
            self._h11.our_state is h11.DONE
            and self._h11.their_state is h11.DONE
            and not self._h11.trailing_data[0]
            and not self._received
            and not self._is_over
        )
        if is_usable:
            self._h11.start_next_cycle()
            self._is_idle = True
            self._resume()
        return is_usable

    def begin_call(self) -> bool:
        """Note a call on this back end's connection; tell whether it is still open."""
        self._is_idle = False
        return not (
            self._is_over or self._transport is None or self._transport.is_closing()
        )

    def abort(self) -> None:
        """Close the connection to the back end, whatever is left of an answer."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    async def _next_event(self) -> h11.Event:
        """Wait for the next part of a back end's answer.

        Raises OutcomeUnknown for bytes that are none.
        """
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise OutcomeUnknown(self._reason_for(error)) from error
            if isinstance(event, h11.Event):
                return event
            if event is h11.PAUSED:
                raise OutcomeUnknown("The back end sent more than its answer.")
            self._h11.receive_data(await self._receive())

    def _reason_for(self, error: h11.RemoteProtocolError) -> str:
        """Describe why a back end's answer is no valid HTTP, or ended too early.

        What the library says is for the log: it speaks of its own states.
        """
        log.info("an answer of a back end cannot be read: %s", str(error)[:LOGGED])
        if self._is_over and self._h11.their_state is h11.ERROR:
            return "The back end closed the connection too early: no answer came whole."
        if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            return (
                "The back end's answer is no valid HTTP: its headers, or a line of it,"
                f" are longer than {MOST_HEADER_BYTES} bytes."
            )
        return "The back end's answer is no valid HTTP."

    async def _receive(self) -> bytes:
        """Wait for bytes of the back end; return b"" at the connection's end."""
        while not self._received and not self._is_over:
            self._resume()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._received and self._error is not None:
            raise OutcomeUnknown(f"The connection broke: {self._error}.")
        data = bytes(self._received)
        self._received.clear()
        return data

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _head_of(response: h11.Response) -> AnswerHead:
    """Return the head of an answer; raise OutcomeUnknown where it is too large."""
    headers = [
        (bytes(name), bytes(value)) for name, value in response.headers.raw_items()
    ]
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if len(headers) > MOST_HEADERS or size > MOST_HEADER_BYTES:
        raise OutcomeUnknown(
            f"The back end answered {response.status_code} with {len(headers)} headers "
            f"of {size} bytes: more than {MOST_HEADERS} of {MOST_HEADER_BYTES}."
        )
    return AnswerHead(
        status=response.status_code, reason=bytes(response.reason), headers=headers
    )
