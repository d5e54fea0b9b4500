"""`manage.py sweeper`: empty every outbox until a signal stops it."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand

from apps.core import clock, postgres_connections
from apps.outbox.sweeping import sweeper_process


class Command(BaseCommand):
    help = "Send what waits in every outbox; several processes share them."

    def handle(self, *_: Any, **__: Any) -> None:
        """Run the sweeper process for all outboxes, until a signal to stop."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        with postgres_connections.share_sessions(
            "sweeper",
            most=sweeper_process.MOST_SESSIONS,
            idle_in_transaction_session_timeout=postgres_connections.IDLE_TRANSACTION,
        ):
            sweeper_process.SweeperProcess(clock=clock.now).run(stop)
