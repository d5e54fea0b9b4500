"""The sweeper process: a thread for each outbox; of a paused one it only counts rows.

Every second it reads all outboxes: one that was changed, or whose broker was, is swept
with the new settings, once its last window is marked. Another sweeper process waits for
the lock of each outbox, which is in the producer's database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from time import monotonic

from django.db import DatabaseError
from django.forms.models import model_to_dict

from apps.core.postgres_connections import borrow
from apps.outbox.models import Outbox
from apps.outbox.sweeping.decision_writeback_thread import DecisionWriteback
from apps.outbox.sweeping.outbox_sweeper import OutboxSweeper
from apps.outbox.sweeping.paused_outbox_counter import PausedOutboxCounter

log = logging.getLogger(__name__)

READ_SECONDS = 1.0
# At the end, windows that are being sent may take so long.
STOP_SECONDS = 12.0
# Of our own Postgres, for notes and quarantined rows.
MOST_SESSIONS = 4


class SweeperProcess:
    """The sweepers of all outboxes, in this process."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._sweepers: dict[int, OutboxSweeper | PausedOutboxCounter] = {}
        self._ending: list[OutboxSweeper | PausedOutboxCounter] = []
        self._decision_writeback = DecisionWriteback(clock=clock)

    def run(self, stop: threading.Event) -> None:
        """Sweep all outboxes until `stop`; then let what is being sent end."""
        self._decision_writeback.start()
        try:
            while not stop.is_set():
                self._read()
                stop.wait(READ_SECONDS)
        finally:
            self._end(self._sweepers)
            self._decision_writeback.stop()
            until = monotonic() + STOP_SECONDS
            for sweeper in self._ending:
                if not sweeper.join(max(0.0, until - monotonic())):
                    log.error("%s was still being swept at the end", sweeper.outbox)
            if not self._decision_writeback.join(max(0.0, until - monotonic())):
                log.error("rows were still being settled at the end")

    def _read(self) -> None:
        """Read all outboxes; start and stop their sweeper threads."""
        try:
            with borrow():
                outboxes = list(
                    Outbox.objects.select_related("broker", "topic").order_by("pk")
                )
        except DatabaseError as away:
            log.warning("the outboxes cannot be read: %s", away)
            return
        active = {each.pk: each for each in outboxes}
        self._end(
            [
                pk
                for pk, sweeper in self._sweepers.items()
                if pk not in active
                or not _are_alike(active[pk], sweeper.outbox)
                or not sweeper.is_alive
            ]
        )
        self._ending = [sweeper for sweeper in self._ending if sweeper.is_alive]
        # A count that is running does not hold up the sweeper of a resumed outbox.
        busy = {each.outbox.pk for each in self._ending if not each.outbox.is_paused}
        for pk, outbox in active.items():
            if pk not in self._sweepers and pk not in busy:
                self._begin(outbox)

    def _begin(self, outbox: Outbox) -> None:
        kind = PausedOutboxCounter if outbox.is_paused else OutboxSweeper
        sweeper = self._sweepers[outbox.pk] = kind(outbox, clock=self._clock)
        sweeper.start()

    def _end(self, outbox_ids: Iterable[int]) -> None:
        """Stop the sweepers of these outboxes; `_ending` has them until they end."""
        for pk in list(outbox_ids):
            sweeper = self._sweepers.pop(pk)
            sweeper.stop()
            self._ending.append(sweeper)


def _are_alike(one: Outbox, other: Outbox) -> bool:
    """Tell whether two readings of an outbox have equal settings, also its broker."""
    return one.version == other.version and (
        model_to_dict(one.broker) == model_to_dict(other.broker)
    )
