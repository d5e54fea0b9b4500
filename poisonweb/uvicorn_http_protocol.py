"""The web's HTTP protocol: Uvicorn's, with a time limit for requests and forwarding.

A request has to arrive whole within a minute; its answer may take longer. And another
process may continue a request of which only the head was parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from h11._state import MIGHT_SWITCH_PROTOCOL
from uvicorn.protocols.http.h11_impl import H11Protocol

from poisonweb.client_handover_to_second_process import PartialRequest
from poisonweb.request_arrival_timeout import TOO_LATE, RequestTimeLimit

# In the last state the request is complete, too: it offers another protocol (such as
# h2c), which uvicorn does not support.
WHOLE = frozenset({h11.DONE, h11.MUST_CLOSE, h11.CLOSED, MIGHT_SWITCH_PROTOCOL})
Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class BoundedH11(H11Protocol):
    """A connection that closes if a request takes longer than a minute to arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._time_limit = RequestTimeLimit(self.loop, self._give_up)

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        """Start the time limit for the first HTTP request of a new connection."""
        super().connection_made(transport)
        self._time_limit.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit for a request: its connection is lost."""
        self._time_limit.stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop the time limit for a request once the request is whole."""
        super().handle_events()
        if self.conn.their_state in WHOLE:
            self._time_limit.stop()

    def on_response_complete(self) -> None:
        """Start the time limit for the connection's next HTTP request."""
        self._time_limit.start()
        super().on_response_complete()

    def _give_up(self) -> None:
        """Answer 408 to a late request unless answered; close the connection."""
        if self.transport.is_closing():
            return
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.write(TOO_LATE)
        # The application, which waits for the rest, receives a disconnect.
        self.transport.close()


class ForwardingH11(BoundedH11):
    """A connection that goes to another process with a request for that process."""

    def __init__(
        self,
        *args: Any,
        is_for_another: Callable[[h11.Request], bool],
        hand_on: Callable[[PartialRequest], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._is_for_another = is_for_another
        self._hand_on = hand_on
        self.conn = _FilteredConnection(self._hand_on_costly)

    def _hand_on_costly(self, request: h11.Request) -> bool:
        """Hand a costly request on with its connection; return whether that was done.

        While an earlier answer is being sent, it is not.
        """
        # While an earlier answer is being sent, this process has to answer, too.
        is_free = not self.transport.get_write_buffer_size()
        if not (is_free and self._is_for_another(request)):
            return False
        self._hand_on(
            PartialRequest(
                connection=self.transport.get_extra_info("socket").dup(),
                data=_head(request) + self.conn.trailing_data[0],
                seconds_left=self._time_limit.seconds_left(),
            )
        )
        # This closes our copy of the connection; the other process has its own.
        self.transport.close()
        return True


class ContinuedH11(BoundedH11):
    """A connection that another process has begun to read."""

    def __init__(self, *args: Any, request: PartialRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = request

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        """Go on with a request handed on: read what the web had received of it."""
        super().connection_made(transport)
        self._time_limit.start(self._request.seconds_left)
        self.data_received(self._request.data)


class _FilteredConnection(h11.Connection):
    """A connection that hides requests which another process answers."""

    def __init__(self, is_handed_on: Callable[[h11.Request], bool]) -> None:
        super().__init__(h11.SERVER)
        self._is_handed_on = is_handed_on

    def next_event(self) -> Event:
        """Return the next HTTP event; NEED_DATA for a request that is handed on."""
        event = super().next_event()
        if isinstance(event, h11.Request) and self._is_handed_on(event):
            return h11.NEED_DATA
        return event


def _head(request: h11.Request) -> bytes:
    """Write an HTTP request's head again, as the other process will parse it."""
    lines = [
        b"%s %s HTTP/%s" % (request.method, request.target, request.http_version),
        *(b"%s: %s" % header for header in request.headers.raw_items()),
    ]
    return b"\r\n".join([*lines, b"", b""])
