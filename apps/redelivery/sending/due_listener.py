"""Hear which endpoints have something due, on a session of Postgres of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psycopg

from apps.core import back_off
from apps.core.postgres_connections import notices, open_async_session
from apps.redelivery.due_notices import CHANNEL

log = logging.getLogger(__name__)

BACK_OFF_BASE, BACK_OFF_CAP = 0.5, 5.0


async def listen(wake: Callable[[int], None]) -> None:
    """Listen for notices of due deliveries; call `wake` with each endpoint's id.

    It goes on until it is cancelled. While Postgres is away it tries to connect again;
    what was missed is found by the poll.
    """
    troubles = 0
    while True:
        try:
            async with await open_async_session("sender notices") as session:
                await session.execute(f"LISTEN {CHANNEL}")
                troubles = 0
                async for notice in notices(session):
                    if notice.payload.isdigit():
                        wake(int(notice.payload))
        except psycopg.OperationalError as away:
            troubles += 1
            log.warning("no notices of due deliveries: %s", away)
        await asyncio.sleep(
            back_off.delay(troubles, base=BACK_OFF_BASE, cap=BACK_OFF_CAP)
        )
