"""Sessions of Postgres for pages, and others for all else: a pool for each.

Slow or many pages must not keep consumers from reporting, and calls of the API must not
keep people from their pages. What is limited is sessions, not requests: an answer that
is streamed uses a session after its request has ended.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum

from poisonweb.request_limits import Application, Receive, Scope, Send, is_page


class SessionPool(StrEnum):
    """The requests that share a pool of sessions."""

    PAGES = "pages"
    API = "api"


# Of one process; the process for costly requests has others.
MOST_SESSIONS = {SessionPool.PAGES: 6, SessionPool.API: 10}
# Threads that answer no request, checks of health, and metrics use those of the API.
pool_of_request: ContextVar[SessionPool] = ContextVar(
    "pool_of_request", default=SessionPool.API
)


def assign_pools(application: Application) -> Application:
    """Let each request use the sessions of its pool, in whatever thread it goes on.

    Pages have one pool, and all else the other.
    """

    async def assigned(scope: Scope, receive: Receive, send: Send) -> None:
        pool_of_request.set(SessionPool.PAGES if is_page(scope) else SessionPool.API)
        await application(scope, receive, send)

    return assigned
