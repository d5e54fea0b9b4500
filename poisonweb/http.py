"""HTTP as uvicorn speaks it, with an end to the patience for who sends slowly.

Uvicorn waits for ever for the rest of a request: each half of one keeps a connection
and what came of it. Here a request has to be there, whole, a minute after it could
begin. Its answer may take longer. And a request may go on in another process, before
anything but its head is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from h11._state import MIGHT_SWITCH_PROTOCOL
from uvicorn.protocols.http.h11_impl import H11Protocol

from poisonweb.handover import Begun

SECONDS = 60.0
# The last one: whole as well, with an offer to go on in another protocol (h2c, say),
# which uvicorn does not take up.
WHOLE = frozenset({h11.DONE, h11.MUST_CLOSE, h11.CLOSED, MIGHT_SWITCH_PROTOCOL})
TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)
Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class BoundedH11(H11Protocol):
    """One connection: closes it where a request takes longer than SECONDS to come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._await_request(SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state in WHOLE:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._await_request(SECONDS)
        super().on_response_complete()

    def _await_request(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.write(TOO_LATE)
        # The application, which waits for the rest, is told of a disconnect.
        self.transport.close()


class HandingOn(BoundedH11):
    """One connection, until a request comes that another process shall answer."""

    def __init__(
        self,
        *args: Any,
        is_for_another: Callable[[h11.Request], bool],
        hand_on: Callable[[Begun], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._is_for_another = is_for_another
        self._hand_on = hand_on
        self.conn = _Watched(self._takes_leave)

    def _takes_leave(self, request: h11.Request) -> bool:
        # Where an answer of before is still being sent, this one has to follow it here.
        is_free = not self.transport.get_write_buffer_size()
        if not (is_free and self._is_for_another(request)):
            return False
        self._hand_on(
            Begun(
                connection=self.transport.get_extra_info("socket").dup(),
                received=_head(request) + self.conn.trailing_data[0],
                seconds_left=self._seconds_left(),
            )
        )
        # It closes our end of the connection, of which there is another one now.
        self.transport.close()
        return True

    def _seconds_left(self) -> float:
        return self._deadline.when() - self.loop.time() if self._deadline else SECONDS


class HandedOn(BoundedH11):
    """One connection that another process began to read."""

    def __init__(self, *args: Any, begun: Begun, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begun = begun

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._await_request(self._begun.seconds_left)
        self.data_received(self._begun.received)


class _Watched(h11.Connection):
    """A connection that gives no request which is answered elsewhere."""

    def __init__(self, is_taken: Callable[[h11.Request], bool]) -> None:
        super().__init__(h11.SERVER)
        self._is_taken = is_taken

    def next_event(self) -> Event:
        event = super().next_event()
        if isinstance(event, h11.Request) and self._is_taken(event):
            return h11.NEED_DATA
        return event


def _head(request: h11.Request) -> bytes:
    lines = [
        b"%s %s HTTP/%s" % (request.method, request.target, request.http_version),
        *(b"%s: %s" % header for header in request.headers.raw_items()),
    ]
    return b"\r\n".join([*lines, b"", b""])
