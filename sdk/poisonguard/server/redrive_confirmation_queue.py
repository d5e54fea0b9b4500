"""The confirmations of this process that the server does not have yet."""

from __future__ import annotations

import logging
import threading
from collections import deque
from itertools import islice

from poisonguard.contract import Confirmation
from poisonguard.errors import Full
from poisonguard.server.report_request_and_answers import Sender
from poisonguard.server.spool import Item, Spool

log = logging.getLogger(__name__)

CONFIRMATIONS_LIMIT = 100_000
BATCH = 100


class ConfirmationQueue:
    """Confirmations on disk where there is a spool, and those in memory."""

    def __init__(self, spool: Spool | None) -> None:
        self._spool = spool
        self._lock = threading.Lock()
        self._confirmations: deque[Item] = deque()

    @property
    def waiting(self) -> int:
        """Return how many confirmations of redriven messages wait in memory.

        Those in the spool are not counted.
        """
        return len(self._confirmations)

    def add(self, confirmation: Confirmation) -> None:
        """Store a redriven message's confirmation, in the spool or else in memory.

        It stays there until it is sent; raise Full where neither has room.
        """
        item = confirmation.to_wire()
        if self._spool is not None:
            try:
                self._spool.append("confirmations", item, durable=False)
            except Full as full:
                log.warning("a confirmation is kept in memory only: %s", full)
            else:
                return
        with self._lock:
            if len(self._confirmations) >= CONFIRMATIONS_LIMIT:
                raise Full(
                    f"{CONFIRMATIONS_LIMIT} confirmations wait for Poisonweb already:"
                    " see why it is away, or give the guard a spool folder."
                )
            self._confirmations.append(item)

    def rest(self) -> list[Item]:
        """Remove and return the redriven messages' confirmations in memory."""
        with self._lock:
            rest, self._confirmations = list(self._confirmations), deque()
        return rest

    def send(self, sender: Sender, *, everything: bool) -> None:  # noqa: ARG002 - all are due
        """Send all redriven messages' confirmations that wait in memory."""
        while batch := self._next_batch():
            answers = sender.send("confirmations", batch)
            for item, answer in zip(batch, answers, strict=True):
                if answer["status"] == "rejected":
                    log.error("a confirmation is rejected: %s %s", item, answer)
            with self._lock:
                for _ in range(min(len(batch), len(self._confirmations))):
                    self._confirmations.popleft()

    def _next_batch(self) -> list[Item]:
        """Return the oldest redriven messages' confirmations; they stay until sent."""
        with self._lock:
            return list(islice(self._confirmations, BATCH))
