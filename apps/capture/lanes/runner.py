"""Run a lane for each topic that has a dead-letter queue, each under its own lock.

All locks of a process are on one session of Postgres. A lane checks before each step
that the session is alive. If it has ended, all lanes stop and take their locks again.

The runner reads the rows of all lanes every second, with their topics and brokers: a
new mode, a pause or other settings take effect within two seconds, without a restart.
After an error the dead letters are still in their queue, and the lane tries again
after a growing delay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.forms import model_to_dict

from apps.brokers.errors import QueueMissing, Removed
from apps.capture import daily_partition_creation as by_day
from apps.capture.lanes.dead_letter_drain import Drain
from apps.capture.lanes.depth_polling import POLL_INTERVAL, Clock, record_state
from apps.capture.lanes.observe_only_lane import Observer
from apps.capture.models import Lane, LaneState, Mode
from apps.core import back_off
from apps.core.advisory_locks import Lock, Locks
from apps.core.errors import Invalid, Refused, Unavailable
from apps.core.postgres_connections import borrow
from apps.core.text_cleaning import storable

log = logging.getLogger(__name__)

READ_ROWS_INTERVAL = 1.0
CHECK_ROW_INTERVAL = 1.0
LOCK_INTERVAL = 1.0
# After Postgres confirmed the locks, lanes rely on them this many seconds.
TRUST_LOCKS = 0.5
STOP_TIMEOUT = 10.0
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 15.0
# A lane that waits for Postgres has waited for a session already.
BACK_OFF_CAP_OF_POSTGRES = 5.0

POSTGRES_AWAY = (OperationalError, InterfaceError, psycopg.OperationalError)
AWAY = (Unavailable, Refused, Invalid)

RowOf = Callable[[int], Lane | None]


class LaneWork(Protocol):
    """The work of a lane in one mode, until its settings change."""

    def step(self) -> float:
        """Do about a second of the lane's work; return the seconds until the next."""

    def close(self) -> None:
        """Close a lane's connections to its broker."""


class PausedLane:
    """A paused lane: it reads nothing and makes no call to its broker."""

    def __init__(self, *, lane: Lane, clock: Clock) -> None:
        self.lane = lane
        self.clock = clock

    def step(self) -> float:
        """Write that the lane is paused; return the seconds until the next step."""
        record_state(
            lane=self.lane,
            state=LaneState.PAUSED,
            detail="paused",
            depth=None,
            oldest_at=None,
            rate=0.0,
            now=self.clock(),
        )
        return POLL_INTERVAL

    def close(self) -> None:
        """Do nothing: a paused lane has no connection."""


class LaneRunner:
    """Run one lane until `stop` is set or its row is deleted."""

    def __init__(
        self,
        *,
        topic_id: int,
        row_of: RowOf,
        locks: Locks,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self.topic_id = topic_id
        self.row_of = row_of
        self.locks = locks
        self.stop = stop
        self.clock = clock
        self._troubles = 0

    def run(self) -> None:
        """Work on the lane until `stop` or its removal; after a trouble, back off."""
        while not self.stop.is_set():
            delay = 0.0
            try:
                lane = self.row_of(self.topic_id)
                if lane is None:
                    return
                delay = self._work_under_lock(lane)
            except Removed:
                log.info("the lane of topic %d ends with its topic", self.topic_id)
                return
            except QueueMissing as missing:
                self._record_trouble(
                    LaneState.MISSING, missing, depth=None, oldest_at=None
                )
                delay = self._back_off()
            except POSTGRES_AWAY as trouble:
                self._record_trouble(LaneState.AWAY, trouble)
                delay = self._back_off(cap=BACK_OFF_CAP_OF_POSTGRES)
            except AWAY as trouble:
                self._record_trouble(LaneState.AWAY, trouble)
                delay = self._back_off()
            finally:
                connection.close()
            self.stop.wait(delay)

    def _work_under_lock(self, lane: Lane) -> float:
        """Run a lane if no other process does; return the seconds to the next try."""
        with self.locks.attempt(lane.lock_name) as lock:
            if lock is None:
                return LOCK_INTERVAL
            work = _work_for(lane, self.clock)
            try:
                self._repeat_steps(work, lane, lock)
            finally:
                work.close()
        return 0.0

    def _repeat_steps(self, work: LaneWork, lane: Lane, lock: Lock) -> None:
        """Repeat the lane's steps until its settings change, or the lock is lost."""
        settings, due_at = _settings_of_lane(lane), time.monotonic()
        while not (self.stop.is_set() or lock.lost()):
            if time.monotonic() >= due_at:
                due_at = work.step() + time.monotonic()
                self._troubles = 0
            seconds = max(0.0, due_at - time.monotonic())
            self.stop.wait(min(seconds, CHECK_ROW_INTERVAL))
            row = self.row_of(self.topic_id)
            if row is None or (row is not lane and _settings_of_lane(row) != settings):
                return
            lane = row

    def _back_off(self, *, cap: float = BACK_OFF_CAP) -> float:
        """Draw the seconds to wait after so many troubles of the lane."""
        return back_off.delay(self._troubles, base=BACK_OFF_BASE, cap=cap)

    def _record_trouble(
        self, state: LaneState, trouble: Exception, **values: Any
    ) -> None:
        """Log a lane's trouble and write it on the lane's row, as far as possible."""
        self._troubles += 1
        log.warning("the lane of topic %d waits: %s", self.topic_id, trouble)
        now, detail = self.clock(), storable(str(trouble), limit=500)
        try:
            record_state(
                lane=Lane(pk=self.topic_id),
                state=state,
                detail=detail,
                error=detail,
                error_at=now,
                now=now,
                **values,
            )
        except DatabaseError as error:
            # Postgres itself is away, so no page could show this either.
            log.warning("and cannot say so: %s", error)


def _work_for(lane: Lane, clock: Clock) -> LaneWork:
    """Make the work of a lane's mode: a drain, an observer or a pause."""
    if lane.paused:
        return PausedLane(lane=lane, clock=clock)
    if lane.mode == Mode.OBSERVE:
        return Observer(lane=lane, clock=clock, timer=time.monotonic)
    return Drain(lane=lane, clock=clock)


def _settings_of_lane(lane: Lane) -> tuple[object, ...]:
    """Return what people set on a lane, its topic and broker, to notice changes."""
    lane_fields = (lane.mode, lane.tee_queue, lane.paused)
    topic, broker = lane.topic, lane.topic.broker
    return (*lane_fields, model_to_dict(topic), broker and model_to_dict(broker))


class LaneRows:
    """The rows of all lanes, as of the last read."""

    def __init__(self) -> None:
        self._rows: dict[int, Lane] = {}

    def of(self, topic_id: int) -> Lane | None:
        """Return the row of a topic's lane as last read, or None."""
        return self._rows.get(topic_id)

    @borrow()
    def read(self) -> Collection[int]:
        """Read the rows of all lanes again; return the ids of their topics."""
        self._rows = {lane.pk: lane for lane in Lane.objects.possible()}
        return self._rows.keys()


def serve(*, stop: threading.Event, clock: Clock) -> None:
    """Run a thread for each lane, also for new lanes, until `stop` is set."""
    _make_partitions(stop, clock)
    lanes: dict[int, threading.Thread] = {}
    rows, locks = LaneRows(), Locks("lane locks", trust=TRUST_LOCKS)
    while not stop.is_set():
        try:
            for topic_id in rows.read():
                if topic_id not in lanes or not lanes[topic_id].is_alive():
                    runner = LaneRunner(
                        topic_id=topic_id,
                        row_of=rows.of,
                        locks=locks,
                        stop=stop,
                        clock=clock,
                    )
                    lanes[topic_id] = _start_thread(runner)
        except (OperationalError, InterfaceError) as trouble:
            log.warning("the lanes cannot be read: %s", trouble)
            connection.close()
        stop.wait(READ_ROWS_INTERVAL)
    connection.close()
    # A lane that does not end keeps its lock until the process ends.
    if _have_ended(lanes.values()):
        locks.close()


def _make_partitions(stop: threading.Event, clock: Clock) -> None:
    """Make partitions of failures and counters; wait for Postgres if it is down."""
    while not stop.is_set():
        try:
            with borrow():
                by_day.make(today=clock().date())
        except (OperationalError, InterfaceError) as trouble:
            log.warning("the lanes wait for Postgres: %s", trouble)
            connection.close()
        else:
            return
        stop.wait(READ_ROWS_INTERVAL)


def _start_thread(runner: LaneRunner) -> threading.Thread:
    """Start a thread that runs the lane, and return it."""
    thread = threading.Thread(
        target=runner.run, name=f"lane-{runner.topic_id}", daemon=True
    )
    thread.start()
    return thread


def _have_ended(lanes: Collection[threading.Thread]) -> bool:
    """Wait until the lanes' threads end, or time is up; tell whether all have ended."""
    deadline = time.monotonic() + STOP_TIMEOUT
    for lane in lanes:
        lane.join(timeout=max(0.0, deadline - time.monotonic()))
    return not any(lane.is_alive() for lane in lanes)
