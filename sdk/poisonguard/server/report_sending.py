"""Send a consumer's reports to Poisonweb from one thread, without loss or doubles.

- A failure is sent while its guard waits: `poison` returns once the server or the spool
  has it durably.
- Confirmations are sent in batches until the server accepts them. With a spool they
  are first written to its files, so that a killed process loses none; without one, at
  most `CONFIRMATIONS_LIMIT` wait in memory, and `confirm` raises Full beyond it.
- Counters are sent when their minute is over, and at close. While the server is away
  they merge, up to `counters.MINUTES_LIMIT`. A killed process loses what it counted
  since the last minute that the server accepted.
- A guard's heartbeat replaces its earlier one.

All reports may be sent twice and count once: failures by their id, counters by their
(reporter, sequence), the counts of skips by their report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal
from uuid import uuid4

from poisonguard.contract import Confirmation, FailureReport, GuardHeartbeat
from poisonguard.server.applied_skip_counts import AppliedCounts
from poisonguard.server.counter_and_heartbeat_sending import CounterQueue
from poisonguard.server.counts_by_minute import CounterKey, Counters
from poisonguard.server.failure_report_queue import FailureQueue, Receipt, Stop
from poisonguard.server.heartbeat_queue import Heartbeats
from poisonguard.server.http_client import Client
from poisonguard.server.redrive_confirmation_queue import ConfirmationQueue
from poisonguard.server.report_request_and_answers import Sender
from poisonguard.server.report_sender_thread import (
    REFUSED_PAUSE,
    ReportQueue,
    SenderThread,
)
from poisonguard.server.spool import Spool
from poisonguard.server.spooled_report_sending import (
    ADOPT_EVERY,
    SpoolQueue,
    spool_rest,
)


class Reporter:
    """The outgoing half of a connection. Every method may be called from any thread.

    `trouble` holds, by kind of report, why it cannot be delivered now. Reports that are
    refused wait `refused_pause` seconds; the segments of ended processes are taken over
    every `adopt_every` seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        spool: Spool | None = None,
        refused_pause: float = REFUSED_PAUSE,
        adopt_every: float = ADOPT_EVERY,
    ) -> None:
        self._client = client
        self._spool = spool
        self._refused_pause = refused_pause
        self._adopt_every = adopt_every
        self._reset()

    def _reset(self) -> None:
        """Start with empty report queues, a new reporter id and no thread."""
        self.id = uuid4()
        self.trouble: dict[str, str] = {}
        self._counters = Counters(self.id)
        self._heartbeats = Heartbeats()
        self._applied = AppliedCounts()
        self._failures = FailureQueue(spool=self._spool, wake=self._start_and_wake)
        self._confirmations = ConfirmationQueue(self._spool)
        self._counter_queue = CounterQueue(self._counters, self._heartbeats)
        self._sender = Sender(self._client)
        self._sender_thread = SenderThread(
            self._sender,
            self._queues(),
            trouble=self.trouble,
            on_end=self._close_spool,
            refused_pause=self._refused_pause,
        )

    def _queues(self) -> dict[str, ReportQueue]:
        """Return this process's queues of reports to Poisonweb, in sending order."""
        queues: dict[str, ReportQueue] = {"failures": self._failures}
        if self._spool is not None:
            queues["spool"] = SpoolQueue(
                self._spool, self._failures, adopt_every=self._adopt_every
            )
        queues["confirmations"] = self._confirmations
        queues["applied"] = self._applied
        queues["counters"] = self._counter_queue
        return queues

    def reset_after_fork(self) -> None:
        """Start a forked child without reports: the parent sends its own."""
        self._reset()
        if self._spool is not None:
            self._spool.reset_after_fork()

    # Calls of the guards

    def poison(
        self,
        report: FailureReport,
        *,
        when_away: Literal["hold", "spool"],
        keep_alive: Callable[[], None] | None,
        stop: Stop,
        hold_for: float,
    ) -> Receipt:
        """Return the receipt of a message's failure report, once the report is durable.

        With "hold", wait for the server, calling `keep_alive` about once a second, for
        `hold_for` seconds or until `stop` is set, and then raise Away; at least one try
        is made. With "spool", write it to disk as soon as the server is away. A server
        that refuses the API key (401, 403) counts as away: mend the key. Raise Refused
        when the server rejects the report, Full when the disk is full.
        """
        return self._failures.deliver(
            report,
            when_away=when_away,
            keep_alive=keep_alive,
            stop=stop,
            hold_for=hold_for,
        )

    def confirm(self, confirmation: Confirmation) -> None:
        """Queue a confirmation that a redriven message was handled."""
        self._confirmations.add(confirmation)
        self._start_and_wake()

    def count(
        self,
        key: CounterKey,
        *,
        handled: int = 0,
        failed: int = 0,
        skipped: int = 0,
        retried: int = 0,
        durations: Mapping[int, int] = {},
    ) -> None:
        """Add a guard's message counts to those of this minute for Poisonweb.

        `durations` are by log2 of milliseconds. It takes a lock, so guards add up
        themselves and call it about once a second.
        """
        self._counters.count(
            key,
            handled=handled,
            failed=failed,
            skipped=skipped,
            retried=retried,
            durations=durations,
        )
        self._sender_thread.start()

    def count_applied(
        self,
        *,
        skip: int,
        consumer_group: str,
        client_name: str,
        times: int,
        handled: bool = False,
    ) -> None:
        """Count for Poisonweb how often a skip was used.

        Or that a message was `handled` in spite of it.
        """
        self._applied.count(
            skip=skip,
            consumer_group=consumer_group,
            client_name=client_name,
            times=times,
            handled=handled,
        )

    def now(self) -> datetime:
        """Return the Poisonweb server's estimated time, for a guard's heartbeat.

        By another clock a heartbeat could count as late.
        """
        return self._client.now()

    def set_heartbeat(self, heartbeat: GuardHeartbeat) -> None:
        """Set a guard's heartbeat; send it at once if its state changed."""
        if self._heartbeats.set(heartbeat):
            self._start_and_wake()

    @property
    def spooled(self) -> int:
        """Return how many failure reports to Poisonweb wait on this machine's disk."""
        return 0 if self._spool is None else self._spool.failures

    @property
    def warnings(self) -> list[str]:
        """List problems of sending reports to Poisonweb for a person to resolve."""
        # All kinds often wait for the same reason: list it once.
        reasons = {why: kind for kind, why in list(self.trouble.items())}
        problems = [f"{kind}: {why}" for why, kind in reasons.items()]
        if rejected_counters := self._counter_queue.rejected:
            problems.append(f"{rejected_counters} counters were rejected: see the log.")
        if oversize := self._sender.warning:
            problems.append(oversize)
        if self._spool is None:
            return problems
        if self._spool.rejected:
            place, number = self._spool.rejected_folder, self._spool.rejected
            problems.append(f"{number} reports were rejected: see why in {place}.")
        if self._spool.damaged:
            number = self._spool.damaged
            problems.append(
                f"{number} segments in {self._spool.folder} have a broken end."
            )
        return problems

    # Beginning and end

    def start(self) -> None:
        """Start the thread that sends this process's reports to Poisonweb.

        It also sends the spooled reports of earlier processes.
        """
        self._sender_thread.start()

    def wake(self) -> None:
        """Send waiting reports now, because Poisonweb has just answered.

        Starts no thread.
        """
        self._sender_thread.wake()

    def _start_and_wake(self) -> None:
        """Have the sender's thread send reports now; start it if needed."""
        self._sender_thread.wake()
        self._sender_thread.start()

    def flush(self, timeout: float) -> bool:
        """Send Poisonweb all reports and counts; return whether it accepted them."""
        return self._sender_thread.flush(timeout)

    def close(self, timeout: float) -> None:
        """Send Poisonweb all reports, and end; spool what it did not accept.

        What cannot be spooled is logged.
        """
        deadline = time.monotonic() + timeout
        if not self.flush(timeout):
            self._spool_rest()
        self._failures.close()
        self._sender_thread.end(max(0.0, deadline - time.monotonic()))

    def _spool_rest(self) -> None:
        """Write unsent counters and confirmations to the spool, or log their loss."""
        confirmations = self._confirmations.rest()
        counters = [report.to_wire() for report in self._counters.rest()]
        spool_rest(self._spool, {"counters": counters, "confirmations": confirmations})

    def _close_spool(self) -> None:
        """Close the spool of unsent reports, if there is one."""
        if self._spool is not None:
            self._spool.close()
