"""HTTP as uvicorn speaks it, with an end to the patience for who sends slowly.

Uvicorn waits for ever for the rest of a request: each half of one keeps a connection
and what came of it. Here a request has to be there, whole, a minute after it could
begin. Its answer may take longer.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from h11._state import MIGHT_SWITCH_PROTOCOL
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 60.0
# The last one: whole as well, with an offer to go on in another protocol (h2c, say),
# which uvicorn does not take up.
WHOLE = frozenset({h11.DONE, h11.MUST_CLOSE, h11.CLOSED, MIGHT_SWITCH_PROTOCOL})
TOO_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedH11(H11Protocol):
    """One connection: closes it where a request takes longer than SECONDS to come."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override] # as the parent class does
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.conn.their_state in WHOLE:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(SECONDS, self._give_up)

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
