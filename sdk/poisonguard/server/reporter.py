"""Sends a consumer's reports to Poisonweb from one thread, without loss or doubles.

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

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal, Protocol
from uuid import uuid4

from poisonguard.contract import (
    Confirmation,
    FailureReport,
    GuardHeartbeat,
    GuardState,
)
from poisonguard.errors import Away, Full, GuardError, Misconfigured, Refused
from poisonguard.server.client import Backoff, Client
from poisonguard.server.counters import AppliedCounts, CounterKey, Counters
from poisonguard.server.oversize import Oversize, explained, without_body
from poisonguard.server.spool import Item, Spool
from poisonguard.version import VERSION

log = logging.getLogger(__name__)

CONFIRMATIONS_LIMIT = 100_000
BATCH = 100
BATCH_BYTES = 8 * 1024 * 1024
ADOPT_EVERY = 10.0
APPLIED_EVERY = 5.0
GUARDS_EVERY = 60.0
# Refused requests are refused again until a person changes the cause.
REFUSED_PAUSE = 5.0
_IDLE = 1.0
_SLICE = 0.1  # how soon a waiting guard notices a stop
_KEEP_ALIVE_EVERY = 1.0
_SHOWN = 100  # characters of an unknown status

# The content is wrong, not the sender.
_OF_CONTENT = {400, 413, 422}
# The key is wrong; the content is accepted once the key is mended.
_OF_KEY = {401, 403}
_TOO_LARGE = 413
_PATHS = {"applied": "/skips/applied"}
# The answers to each kind of report: all but `rejected` mean that the server has it. An
# unknown status of a newer server may mean either.
_STATUSES = {
    "failures": ("created", "updated", "duplicate", "rejected"),
    "confirmations": ("confirmed", "duplicate", "rejected"),
    "counters": ("counted", "duplicate", "rejected"),
    "applied": ("ok", "rejected"),
}

# The topic, the consumer group and the client name.
_GuardKey = tuple[str, str, str]


class Stop(Protocol):
    """An event that ends all waiting."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Says that the server, or the spool, has a report durably."""

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
        self.answer = answer
        self.done.set()

    def refuse(self, refused: Refused) -> None:
        self.refused = refused
        self.done.set()

    def receipt(self) -> Receipt:
        if self.refused is not None:
            raise self.refused
        if self.answer.get("status") == "rejected":
            raise Refused(str(self.answer.get("detail") or "the report was rejected"))
        return Receipt(
            status=str(self.answer["status"]),
            poison=self.answer.get("poison"),
            spooled=False,
        )


class Reporter:
    """The outgoing half of a connection. Every method may be called from any thread.

    `trouble` holds, by kind of report, why it cannot be delivered now.
    """

    def __init__(self, client: Client, *, spool: Spool | None = None) -> None:
        self._client = client
        self._spool = spool
        self._reset()

    def _reset(self) -> None:
        self.id = uuid4()
        self.trouble: dict[str, str] = {}
        self.rejected_counters = 0
        self.counters = Counters(self.id)
        self.applied = AppliedCounts()
        self._oversize = Oversize()
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []
        self._confirmations: deque[Item] = deque()
        self._heartbeats: dict[_GuardKey, GuardHeartbeat] = {}
        self._states: dict[_GuardKey, GuardState] = {}
        self._due = dict.fromkeys(("adopt", "applied", "guards"), 0.0)
        self._not_before: dict[str, float] = {}
        self._woken = threading.Event()
        self._flushing = threading.Event()
        self._flushed = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def reset_after_fork(self) -> None:
        """Start empty in a child: the parent reports its own counts."""
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
        """Return once the report is durable.

        With "hold", wait for the server, calling `keep_alive` about once a second, for
        `hold_for` seconds or until `stop` is set, and then raise Away; at least one try
        is made. With "spool", write it to disk as soon as the server is away. A server
        that refuses the API key (401, 403) counts as away: mend the key. Raise Refused
        when the server rejects the report, Full when the disk is full.
        """
        spool = self._spool_for(when_away)
        if spool is not None and spool.failures:
            return self._spooled(spool, report)  # behind the reports that wait there
        job = _Job(report)
        self._add(job)
        try:
            self._await(job, spool, keep_alive, stop, hold_for)
        finally:
            self._remove(job)
        if job.done.is_set():
            return job.receipt()
        if spool is None:
            raise job.away or Away("This connection was closed before it could report.")
        return self._spooled(spool, report)

    def confirm(self, confirmation: Confirmation) -> None:
        """Queue a confirmation that a redriven message was handled."""
        item = confirmation.to_wire()
        if self._spool is not None:
            try:
                self._spool.append("confirmations", item, durable=False)
            except Full as full:
                log.warning("a confirmation is kept in memory only: %s", full)
            else:
                self._wake()
                return
        with self._lock:
            if len(self._confirmations) >= CONFIRMATIONS_LIMIT:
                raise Full(
                    f"{CONFIRMATIONS_LIMIT} confirmations wait for Poisonweb already:"
                    " see why it is away, or give the guard a spool folder."
                )
            self._confirmations.append(item)
        self._wake()

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
        """Add to this minute; `durations` are counts by log2 bucket of milliseconds.

        It takes a lock, so guards add up themselves and call it about once a second.
        """
        self.counters.count(
            key,
            handled=handled,
            failed=failed,
            skipped=skipped,
            retried=retried,
            durations=durations,
        )
        self._ensure_thread()

    def now(self) -> datetime:
        """Return the time by a clock that cannot be set back.

        By another clock a heartbeat could count as late.
        """
        return self._client.now()

    def set_heartbeat(self, heartbeat: GuardHeartbeat) -> None:
        """Set a guard's heartbeat; send it at once if its state changed."""
        key = heartbeat.topic, heartbeat.consumer_group, heartbeat.client_name
        with self._lock:
            self._heartbeats[key] = heartbeat
            changed = self._states.get(key) != heartbeat.state
            self._states[key] = heartbeat.state
            if changed:
                self._due["guards"] = 0.0
        if changed:
            self._wake()

    @property
    def spooled(self) -> int:
        """Return the number of failure reports that wait on the disk."""
        return 0 if self._spool is None else self._spool.failures

    @property
    def warnings(self) -> list[str]:
        """List problems that a person should resolve."""
        # All kinds often wait for the same reason: list it once.
        reasons = {why: kind for kind, why in list(self.trouble.items())}
        problems = [f"{kind}: {why}" for why, kind in reasons.items()]
        if self.rejected_counters:
            problems.append(
                f"{self.rejected_counters} counters were rejected: see the log."
            )
        if oversize := self._oversize.warning:
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
        """Start the thread, which also sends what earlier processes spooled."""
        self._ensure_thread()

    def wake(self) -> None:
        """Try to send now: the server was seen."""
        self._woken.set()

    def flush(self, timeout: float) -> bool:
        """Send everything, with the current minute; return whether it was accepted."""
        if self._waiting() == 0 or self._ended:
            return self._waiting() == 0
        self._flushed.clear()
        self._flushing.set()
        self._wake()
        try:
            return self._flushed.wait(timeout) and not self.trouble
        finally:
            self._flushing.clear()

    def close(self, timeout: float) -> None:
        """Flush and end; what the server did not accept goes to the spool, if any."""
        deadline = time.monotonic() + timeout
        if not self.flush(timeout):
            self._spool_rest()
        self._ended = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        elif self._spool is not None:
            self._spool.close()

    def _spool_rest(self) -> None:
        """Spool what could not be delivered, or log its loss."""
        with self._lock:
            confirmations, self._confirmations = list(self._confirmations), deque()
        counters = [report.to_wire() for report in self.counters.rest()]
        unsent: dict[str, Sequence[Item]] = {
            "counters": counters,
            "confirmations": confirmations,
        }
        if not any(unsent.values()):
            return
        if self._spool is None:
            _say_lost(unsent, "there is no spool folder")
            return
        try:
            for kind, items in unsent.items():
                for item in items:
                    self._spool.append(kind, item, durable=False)
        except Full as full:
            _say_lost(unsent, str(full))

    # How a report waits

    def _spool_for(self, when_away: str) -> Spool | None:
        if when_away == "hold":
            return None
        if self._spool is None:
            raise Misconfigured('when_away="spool" needs a spool folder: name one.')
        return self._spool

    def _spooled(self, spool: Spool, report: FailureReport) -> Receipt:
        spool.append("failures", report.to_wire(), durable=True)
        log.warning("a report waits in %s for Poisonweb to return", spool.folder)
        self._wake()
        return Receipt(status="spooled", poison=None, spooled=True)

    def _await(
        self,
        job: _Job,
        spool: Spool | None,
        keep_alive: Callable[[], None] | None,
        stop: Stop,
        hold_for: float,
    ) -> None:
        started_at = kept_alive_at = time.monotonic()
        while not job.done.wait(_SLICE):
            now = time.monotonic()
            in_vain = stop.is_set() or now - started_at >= hold_for
            if self._ended or (job.away and (spool or in_vain)):
                return
            if keep_alive is not None and now - kept_alive_at >= _KEEP_ALIVE_EVERY:
                kept_alive_at = now
                keep_alive()

    def _add(self, job: _Job) -> None:
        with self._lock:
            self._jobs.append(job)
        self._wake()

    def _remove(self, job: _Job) -> None:
        with self._lock:
            self._jobs.remove(job)

    # The thread

    def _wake(self) -> None:
        self.wake()
        self._ensure_thread()

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._start_thread()

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(
                    target=self._run, name="poisonguard-reporter", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        backoff = Backoff(cap=5.0)
        while not self._ended:
            self._woken.clear()
            flushing = self._flushing.is_set()
            pause = self._try(backoff)
            if flushing and "server" not in self.trouble:
                self._flushed.set()
            self._woken.wait(pause)
        if self._spool is not None:
            self._spool.close()

    def _try(self, backoff: Backoff) -> float:
        """Send what is due; return how many seconds to wait until the next try."""
        try:
            self._send_all()
        except GuardError as away:
            if "server" not in self.trouble:
                log.warning("reports wait until Poisonweb is there: %s", away)
            self.trouble["server"] = str(away)
        except Exception:
            log.exception("the reporter failed, and goes on")
            self.trouble["server"] = "the reporter failed: see the log"
        else:
            backoff.reset()
            self.trouble.pop("server", None)
            return _IDLE
        pause = backoff.next()
        # A guard waits for an answer: retry soon.
        return min(pause, 1.0) if self._jobs else pause

    def _send_all(self) -> None:
        steps = {
            "failures": self._send_failures,
            "spool": self._drain,
            "confirmations": self._send_confirmations,
            "applied": self._send_applied,
            "counters": self._send_counters,
        }
        for kind, send in steps.items():
            if time.monotonic() >= self._not_before.get(kind, 0.0):
                self._attempt(kind, send)

    def _attempt(self, kind: str, send: Callable[[], None]) -> None:
        try:
            send()
        except (Refused, Misconfigured, Full) as refused:
            # A kind that the key may not send does not delay the others. Failures are
            # tried on without a pause, because a guard waits for them.
            if kind != "failures":
                self._not_before[kind] = time.monotonic() + REFUSED_PAUSE
            if kind not in self.trouble:
                log.warning("%s cannot be delivered: %s", kind, refused)
            self.trouble[kind] = str(refused)
        else:
            self.trouble.pop(kind, None)

    def _waiting(self) -> int:
        spooled = 0 if self._spool is None else self._spool.waiting
        memory = len(self._jobs) + len(self._confirmations) + len(self._heartbeats)
        return spooled + memory + self.applied.waiting + self.counters.waiting

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due[what] and not self._flushing.is_set():
            return False
        self._due[what] = now + every
        return True

    # The kinds of reports

    def _deliver(
        self, kind: str, items: Sequence[Item], beside: Item | None = None
    ) -> list[Item]:
        """Send items of one kind; return the answers in their order."""
        body = {kind: list(items), **(beside or {})}
        try:
            answer = self._client.post(_PATHS.get(kind, f"/{kind}"), body)
        except Refused as refused:
            if refused.status not in _OF_CONTENT:
                raise
            if len(items) > 1:
                return [self._deliver(kind, [item])[0] for item in items]
            if refused.status == _TOO_LARGE and "body" in items[0]:
                return self._deliver(kind, [without_body(items[0])])
            return [{"status": "rejected", "detail": str(refused)} for _ in items]
        answers = _answers(answer, expected=len(items))
        return [
            explained(item, one)
            if "oversize_body" in item
            else _reject_unknown_status(kind, one)
            for item, one in zip(items, answers, strict=True)
        ]

    def _send_failures(self) -> None:
        while jobs := self._next_jobs():
            try:
                items = [self._to_wire(job.report) for job in jobs]
                for job, answer in zip(
                    jobs, self._deliver("failures", items), strict=True
                ):
                    self._oversize.learn_from(job.report, answer)
                    job.finish(answer)
            except Exception as reason:
                if isinstance(reason, Refused) and reason.status not in _OF_KEY:
                    for job in jobs:
                        job.refuse(reason)
                    continue
                away = Away(f"The report could not be sent: {reason}")
                self.trouble["failures"] = str(reason)
                for job in jobs:
                    job.away = away
                raise

    def _to_wire(self, report: FailureReport) -> Item:
        """Return the wire form of a report, without a body that is too large."""
        if not self._oversize.fits(len(report.body)):
            report = report.without_body()
        return report.to_wire()

    def _next_jobs(self) -> list[_Job]:
        jobs, size = list[_Job](), 0
        with self._lock:
            for job in self._jobs:
                size += len(job.report.body)
                if jobs and (size > BATCH_BYTES or len(jobs) == BATCH):
                    break
                if not job.done.is_set():
                    jobs.append(job)
        return jobs

    def _drain(self) -> None:
        spool = self._spool
        if spool is None:
            return
        if self._is_due("adopt", ADOPT_EVERY):
            spool.adopt()
        while batch := spool.batch():
            answers = self._deliver(batch.kind, batch.items)
            for item, answer in zip(batch.items, answers, strict=True):
                if answer["status"] == "rejected":
                    spool.set_aside(batch.kind, item, str(answer.get("detail")))
            spool.confirm_batch(batch)
            if self._jobs:
                self._send_failures()

    def _send_confirmations(self) -> None:
        while batch := self._next_confirmations():
            for item, answer in zip(
                batch, self._deliver("confirmations", batch), strict=True
            ):
                if answer["status"] == "rejected":
                    log.error("a confirmation is rejected: %s %s", item, answer)
            with self._lock:
                for _ in range(min(len(batch), len(self._confirmations))):
                    self._confirmations.popleft()

    def _next_confirmations(self) -> list[Item]:
        with self._lock:
            return list(islice(self._confirmations, BATCH))

    def _send_applied(self) -> None:
        if not self._is_due("applied", APPLIED_EVERY):
            return
        while batch := self.applied.batch():
            self._deliver("applied", batch)
            self.applied.confirm_batch()

    def _send_counters(self) -> None:
        flushing = self._flushing.is_set()
        # Guards go on counting: a flush sends only what was there when it began.
        for _ in range(1 + self.counters.waiting):
            batch = self.counters.batch(everything=flushing)
            beats = self._take_heartbeats()
            if not batch and not beats:
                return
            guards = [beat.to_wire() for beat in beats.values()]
            beside = {"guards": guards} if guards else None
            try:
                items = [report.to_wire() for report in batch]
                answers = self._deliver("counters", items, beside)
            except GuardError:
                self._put_back(beats)
                raise
            for item, answer in zip(items, answers, strict=True):
                if answer["status"] == "rejected":
                    self.rejected_counters += 1
                    log.error("a counter is rejected: %s %s", item, answer)
            self.counters.confirm_batch()

    def _take_heartbeats(self) -> dict[_GuardKey, GuardHeartbeat]:
        if not self._heartbeats or not self._is_due("guards", GUARDS_EVERY):
            return {}
        with self._lock:
            beats, self._heartbeats = self._heartbeats, {}
        return beats

    def _put_back(self, beats: dict[_GuardKey, GuardHeartbeat]) -> None:
        if beats:
            with self._lock:
                self._heartbeats = beats | self._heartbeats
                self._due["guards"] = 0.0


def _say_lost(unsent: Mapping[str, Sequence[Item]], why: str) -> None:
    numbers = {kind: len(items) for kind, items in unsent.items()}
    log.error("Poisonweb is away and these are lost: %s (%s)", numbers, why)


def _reject_unknown_status(kind: str, answer: Item) -> Item:
    """Return the answer, or a rejection where its status is unknown."""
    if answer["status"] in _STATUSES[kind]:
        return answer
    status = str(answer["status"])[:_SHOWN]
    detail = (
        f"the server answers {status!r}, which poisonguard {VERSION} does not know:"
        " install a version of the server's age"
    )
    return {"status": "rejected", "detail": detail}


def _answers(answer: Any, *, expected: int) -> list[Item]:
    results = answer.get("results") if isinstance(answer, Mapping) else None
    if (
        not isinstance(results, list)
        or len(results) != expected
        or not all(isinstance(one, Mapping) and "status" in one for one in results)
    ):
        raise Away("The server's answer has another form than ours.")
    return results
