"""Sessions of Postgres for pages, and others for all else: a pool for each room.

Slow or many pages must not keep consumers from reporting, and calls of the API must not
keep people from their pages. What is limited is sessions, not requests: an answer that
is streamed uses a session after its request has ended.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum

from poisonweb.request_limits import Application, Receive, Scope, Send, is_page


class Room(StrEnum):
    """What a request is for."""

    PAGES = "pages"
    API = "api"


# Of one process; the process for costly requests has others.
MOST_SESSIONS = {Room.PAGES: 6, Room.API: 10}
# Threads that answer no request, checks of health, and metrics use those of the API.
room_of_request: ContextVar[Room] = ContextVar("room_of_request", default=Room.API)


def assign_rooms(application: Application) -> Application:
    """Let each request use its room's Postgres sessions, in whatever thread it goes on.

    Pages are one room, and all else the other.
    """

    async def assigned(scope: Scope, receive: Receive, send: Send) -> None:
        room_of_request.set(Room.PAGES if is_page(scope) else Room.API)
        await application(scope, receive, send)

    return assigned
