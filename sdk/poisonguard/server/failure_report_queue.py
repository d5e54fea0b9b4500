"""The failure reports of this process, each with a guard that waits for its answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from poisonguard.contract import FailureReport
from poisonguard.errors import Away, Misconfigured, Refused
from poisonguard.server.report_request_and_answers import Sender
from poisonguard.server.spool import Item, Spool

log = logging.getLogger(__name__)

BATCH = 100
BATCH_BYTES = 8 * 1024 * 1024
_SLICE = 0.1  # how soon a waiting guard notices a stop
_KEEP_ALIVE_EVERY = 1.0
# The key is wrong; the content is accepted once the key is mended.
_OF_KEY = {401, 403}


class Stop(Protocol):
    """An event that ends all waiting."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Say that the server, or the spool, has a report durably."""

    status: str
    poison: int | None
    spooled: bool


class _Job:
    """A report whose guard waits for the answer."""

    def __init__(self, report: FailureReport) -> None:
        self.report = report
        self.done = threading.Event()
        self.answer: Item = {}
        self.refused: Refused | None = None
        self.away: Away | None = None

    def finish(self, answer: Item) -> None:
        """Store the server's answer to a report, and end the guard's wait."""
        self.answer = answer
        self.done.set()

    def refuse(self, refused: Refused) -> None:
        """Store that the server refuses the report, and end the wait of the guard."""
        self.refused = refused
        self.done.set()

    def receipt(self) -> Receipt:
        """Return the receipt of a failure report; raise Refused for a rejection."""
        if self.refused is not None:
            raise self.refused
        if self.answer.get("status") == "rejected":
            raise Refused(str(self.answer.get("detail") or "the report was rejected"))
        return Receipt(
            status=str(self.answer["status"]),
            poison=self.answer.get("poison"),
            spooled=False,
        )


class FailureQueue:
    """The failure reports that wait in memory; the guards of all of them wait, too.

    `wake` makes the sender's thread try now.
    """

    def __init__(self, *, spool: Spool | None, wake: Callable[[], None]) -> None:
        self._spool = spool
        self._wake = wake
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """Return how many failure reports wait for the server."""
        return len(self._jobs)

    # The guards' side

    def deliver(
        self,
        report: FailureReport,
        *,
        when_away: Literal["hold", "spool"],
        keep_alive: Callable[[], None] | None,
        stop: Stop,
        hold_for: float,
    ) -> Receipt:
        """Return a failure report's receipt once server or spool has the report.

        See `Reporter.poison` for how long that may take, and what it raises.
        """
        spool = self._spool_for(when_away)
        if spool is not None and spool.failures:
            # Behind the reports that wait there.
            return self._write_to_spool(spool, report)
        job = _Job(report)
        self._add(job)
        try:
            self._wait_for_answer(job, spool, keep_alive, stop, hold_for)
        finally:
            self._remove(job)
        if job.done.is_set():
            return job.receipt()
        if spool is None:
            raise job.away or Away("This connection was closed before it could report.")
        return self._write_to_spool(spool, report)

    def close(self) -> None:
        """Let no guard wait longer for the answer to its failure report."""
        self._closed = True

    def _spool_for(self, when_away: str) -> Spool | None:
        """Return the spool for a failure report while the server is away, or None."""
        if when_away == "hold":
            return None
        if self._spool is None:
            raise Misconfigured('when_away="spool" needs a spool folder: name one.')
        return self._spool

    def _write_to_spool(self, spool: Spool, report: FailureReport) -> Receipt:
        """Write a failure report to the spool durably; return its receipt."""
        spool.append("failures", report.to_wire(), durable=True)
        log.warning("a report waits in %s for Poisonweb to return", spool.folder)
        self._wake()
        return Receipt(status="spooled", poison=None, spooled=True)

    def _wait_for_answer(
        self,
        job: _Job,
        spool: Spool | None,
        keep_alive: Callable[[], None] | None,
        stop: Stop,
        hold_for: float,
    ) -> None:
        """Wait for a failure report's answer, calling `keep_alive`, or give up."""
        started_at = kept_alive_at = time.monotonic()
        while not job.done.wait(_SLICE):
            now = time.monotonic()
            in_vain = stop.is_set() or now - started_at >= hold_for
            if self._closed or (job.away and (spool or in_vain)):
                return
            if keep_alive is not None and now - kept_alive_at >= _KEEP_ALIVE_EVERY:
                kept_alive_at = now
                keep_alive()

    def _add(self, job: _Job) -> None:
        """Queue a failure report, and have the sender try now."""
        with self._lock:
            self._jobs.append(job)
        self._wake()

    def _remove(self, job: _Job) -> None:
        """Remove a failure report from the queue."""
        with self._lock:
            self._jobs.remove(job)

    # The sender's side

    def send(self, sender: Sender, *, everything: bool) -> None:  # noqa: ARG002 - all are due
        """Send all failure reports; raise if server or API key makes them wait."""
        while jobs := self._next_jobs():
            try:
                answers = sender.send_failures([job.report for job in jobs])
                for job, answer in zip(jobs, answers, strict=True):
                    job.finish(answer)
            except Exception as reason:
                if isinstance(reason, Refused) and reason.status not in _OF_KEY:
                    for job in jobs:
                        job.refuse(reason)
                    continue
                away = Away(f"The report could not be sent: {reason}")
                for job in jobs:
                    job.away = away
                raise

    def _next_jobs(self) -> list[_Job]:
        """Return the oldest failure reports that fit one request; they stay queued."""
        jobs, size = list[_Job](), 0
        with self._lock:
            for job in self._jobs:
                size += len(job.report.body)
                if jobs and (size > BATCH_BYTES or len(jobs) == BATCH):
                    break
                if not job.done.is_set():
                    jobs.append(job)
        return jobs
