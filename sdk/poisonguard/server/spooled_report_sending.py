"""Send what waits on the disk, also what ended processes left there."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from poisonguard.errors import Full
from poisonguard.server.failure_report_queue import FailureQueue
from poisonguard.server.fixed_interval import RepeatInterval
from poisonguard.server.report_request_and_answers import Sender
from poisonguard.server.spool import Item, Spool

log = logging.getLogger(__name__)

ADOPT_EVERY = 10.0


class SpoolQueue:
    """The reports of a spool; those whose guards wait are sent ahead of them."""

    def __init__(
        self, spool: Spool, failures: FailureQueue, *, adopt_every: float = ADOPT_EVERY
    ) -> None:
        self._spool = spool
        self._failures = failures
        self._adoption = RepeatInterval(adopt_every)

    @property
    def waiting(self) -> int:
        """Return how many spooled records wait on the disk."""
        return self._spool.waiting

    def send(self, sender: Sender, *, everything: bool) -> None:
        """Send all spooled reports, on the sender's thread.

        First take over those of ended processes, if that is due or `everything`.
        """
        if self._adoption.restart_if_due(early=everything):
            self._spool.adopt()
        while batch := self._spool.batch():
            answers = sender.send(batch.kind, batch.items)
            for item, answer in zip(batch.items, answers, strict=True):
                if answer["status"] == "rejected":
                    self._spool.set_aside(batch.kind, item, str(answer.get("detail")))
            self._spool.confirm_batch(batch)
            if self._failures.waiting:
                self._failures.send(sender, everything=everything)


def spool_rest(spool: Spool | None, unsent: Mapping[str, Sequence[Item]]) -> None:
    """Spool reports not sent before the end, or log their loss."""
    if not any(unsent.values()):
        return
    if spool is None:
        _log_loss(unsent, "there is no spool folder")
        return
    try:
        for kind, items in unsent.items():
            for item in items:
                spool.append(kind, item, durable=False)
    except Full as full:
        _log_loss(unsent, str(full))


def _log_loss(unsent: Mapping[str, Sequence[Item]], why: str) -> None:
    """Log how many reports of each kind are lost, and why."""
    numbers = {kind: len(items) for kind, items in unsent.items()}
    log.error("Poisonweb is away and these are lost: %s (%s)", numbers, why)
