"""`manage.py lanes`: drain the dead-letter queues until a signal stops it."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand

from apps.capture.lanes import runner
from apps.core import clock, postgres_connections
from apps.core.stop_event import StopEvent

# For all lanes together, without the session of their locks. A lane holds no session
# while it waits for its broker, and most of the time of a write is spent in Python.
MOST_SESSIONS = 8


class Command(BaseCommand):
    help = "Drain the dead-letter queue of every topic that has one; a lane for each."

    def handle(self, *_: Any, **__: Any) -> None:
        """Drain dead-letter queues, each by its lane, until a signal to stop."""
        stop = StopEvent()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        with postgres_connections.share_sessions("lanes", most=MOST_SESSIONS):
            runner.serve(stop=stop, clock=clock.now)
