"""`manage.py sender`: deliver what is due at every endpoint until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import AbstractContextManager
from typing import Any

from django.core.management.base import BaseCommand

from apps.core import clock, postgres_connections
from apps.redelivery.sending import sender_process


class Command(BaseCommand):
    help = "Deliver what is due at every endpoint; several processes share them."

    def handle(self, *_: Any, **__: Any) -> None:
        """Send the due deliveries of all endpoints until a signal to stop."""
        # A full collection need not look through all that is loaded: with thousands of
        # calls a second there are many.
        gc.collect()
        gc.freeze()
        with sessions():
            asyncio.run(_serve())


def sessions() -> AbstractContextManager[None]:
    """Let a sender's threads share Postgres sessions within a block.

    Postgres ends a transaction that idles: a frozen sender must not keep its rows
    locked.
    """
    return postgres_connections.share_sessions(
        "sender",
        most=sender_process.MOST_SESSIONS,
        idle_in_transaction_session_timeout=postgres_connections.IDLE_TRANSACTION,
    )


async def _serve() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await sender_process.serve(stop=stop, clock=clock.now)
