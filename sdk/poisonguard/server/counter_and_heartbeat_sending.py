"""Send the counters of this process, with its guards' heartbeats beside them."""

from __future__ import annotations

import logging

from poisonguard.errors import GuardError
from poisonguard.server.counts_by_minute import Counters
from poisonguard.server.heartbeat_queue import Heartbeats
from poisonguard.server.report_request_and_answers import Sender

log = logging.getLogger(__name__)


class CounterQueue:
    """The counters and heartbeats that wait, and how many counters were rejected."""

    def __init__(self, counters: Counters, heartbeats: Heartbeats) -> None:
        self._counters = counters
        self._heartbeats = heartbeats
        self.rejected = 0

    @property
    def waiting(self) -> int:
        """Return how many counter reports and guards' heartbeats wait to be sent."""
        return self._counters.waiting + self._heartbeats.waiting

    def send(self, sender: Sender, *, everything: bool) -> None:
        """Send the message counts of finished minutes, and due heartbeats of guards.

        With `everything`, send all of both.
        """
        # Guards go on counting: a flush sends only what was there when it began.
        for _ in range(1 + self._counters.waiting):
            batch = self._counters.batch(everything=everything)
            heartbeats = self._heartbeats.take(early=everything)
            if not batch and not heartbeats:
                return
            items = [report.to_wire() for report in batch]
            guards = [heartbeat.to_wire() for heartbeat in heartbeats]
            beside = {"guards": guards} if guards else None
            try:
                answers = sender.send("counters", items, beside)
            except GuardError:
                self._heartbeats.put_back(heartbeats)
                raise
            for item, answer in zip(items, answers, strict=True):
                if answer["status"] == "rejected":
                    self.rejected += 1
                    log.error("a counter is rejected: %s %s", item, answer)
            self._counters.confirm_batch()
