"""Lanes: one for each row whose topic has a dead-letter queue, under a lock of its own.

All locks of a process are on one session of Postgres. A lane asks before each step
whether it lives: when it ended, all lanes stop, and begin with taking their locks anew.

Every second the rows of all lanes are read again, with their topics and brokers:
another mode, a pause or other settings hold within two seconds, and nothing has to be
started anew.
Whatever goes wrong leaves dead letters in their queue, and the lane comes back for
them with a longer breath.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.forms import model_to_dict

from apps.brokers.errors import QueueMissing, Removed
from apps.capture import partitions as by_day
from apps.capture.lanes.drain import Drain
from apps.capture.lanes.monitor import LOOK_EVERY, Clock, note
from apps.capture.lanes.observer import Observer
from apps.capture.models import Lane, LaneState, Mode
from apps.core.errors import Invalid, Refused, Unavailable
from apps.core.lock import Lock, Locks
from apps.core.sessions import borrow
from apps.core.text import storable

log = logging.getLogger(__name__)

READ_ROWS_EVERY = 1.0
LOOK_AT_ROW_EVERY = 1.0
LOCK_EVERY = 1.0
# For so long the lanes believe that their locks are held, after Postgres said so.
TRUST_LOCKS = 0.5
END_WITHIN = 10.0
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 15.0
# Who waits for Postgres has waited for a session already.
BACK_OFF_CAP_OF_POSTGRES = 5.0

POSTGRES_AWAY = (OperationalError, InterfaceError, psycopg.OperationalError)
AWAY = (Unavailable, Refused, Invalid)

RowOf = Callable[[int], Lane | None]


class Work(Protocol):
    """What a lane does while its row stays as it is."""

    def once(self) -> float:
        """Do one step, of about a second at most; give the seconds until the next."""

    def close(self) -> None: ...


class PausedLane:
    """A lane that is paused: it reads nothing, and asks its broker nothing."""

    def __init__(self, *, lane: Lane, clock: Clock) -> None:
        self.lane = lane
        self.clock = clock

    def once(self) -> float:
        note(
            lane=self.lane,
            state=LaneState.PAUSED,
            detail="paused",
            depth=None,
            oldest_at=None,
            rate=0.0,
            now=self.clock(),
        )
        return LOOK_EVERY

    def close(self) -> None:
        """Hold nothing, so give nothing back."""


class LaneRunner:
    """One lane, until told to stop or until its row is gone."""

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
        while not self.stop.is_set():
            breath = 0.0
            try:
                lane = self.row_of(self.topic_id)
                if lane is None:
                    return
                breath = self._hold_and_work(lane)
            except Removed:
                log.info("the lane of topic %d ends with its topic", self.topic_id)
                return
            except QueueMissing as missing:
                self._say(LaneState.MISSING, missing, depth=None, oldest_at=None)
                breath = self._back_off()
            except POSTGRES_AWAY as trouble:
                self._say(LaneState.AWAY, trouble)
                breath = self._back_off(cap=BACK_OFF_CAP_OF_POSTGRES)
            except AWAY as trouble:
                self._say(LaneState.AWAY, trouble)
                breath = self._back_off()
            finally:
                connection.close()
            self.stop.wait(breath)

    def _hold_and_work(self, lane: Lane) -> float:
        with self.locks.attempt(f"lane:{lane.pk}") as lock:
            if lock is None:
                return LOCK_EVERY
            work = _work(lane, self.clock)
            try:
                self._work(work, lane, lock)
            finally:
                work.close()
        return 0.0

    def _work(self, work: Work, lane: Lane, lock: Lock) -> None:
        """Go on as long as the row tells the same, and the lock is ours."""
        terms, due_at = _told(lane), time.monotonic()
        while not (self.stop.is_set() or lock.lost()):
            if time.monotonic() >= due_at:
                due_at = work.once() + time.monotonic()
                self._troubles = 0
            left = max(0.0, due_at - time.monotonic())
            self.stop.wait(min(left, LOOK_AT_ROW_EVERY))
            now = self.row_of(self.topic_id)
            if now is None or (now is not lane and _told(now) != terms):
                return
            lane = now

    def _back_off(self, *, cap: float = BACK_OFF_CAP) -> float:
        highest = min(cap, BACK_OFF_BASE * 2 ** min(self._troubles, 10))
        return BACK_OFF_BASE + random.uniform(0, highest)  # noqa: S311

    def _say(self, state: LaneState, trouble: Exception, **values: Any) -> None:
        self._troubles += 1
        log.warning("the lane of topic %d waits: %s", self.topic_id, trouble)
        now, words = self.clock(), storable(str(trouble), limit=500)
        try:
            note(
                lane=Lane(pk=self.topic_id),
                state=state,
                detail=words,
                error=words,
                error_at=now,
                now=now,
                **values,
            )
        except DatabaseError as silenced:
            # Postgres itself is away: the page that would show this cannot be had.
            log.warning("and cannot say so: %s", silenced)


def _work(lane: Lane, clock: Clock) -> Work:
    if lane.paused:
        return PausedLane(lane=lane, clock=clock)
    if lane.mode == Mode.OBSERVE:
        return Observer(lane=lane, clock=clock, timer=time.monotonic)
    return Drain(lane=lane, clock=clock)


def _told(lane: Lane) -> tuple[object, ...]:
    """Give what people have said of a lane, its topic and its broker."""
    ours = (lane.mode, lane.tee_queue, lane.paused)
    topic, broker = lane.topic, lane.topic.broker
    return (*ours, model_to_dict(topic), broker and model_to_dict(broker))


class Rows:
    """The rows of all lanes as they last were, read for all of them at once."""

    def __init__(self) -> None:
        self._rows: dict[int, Lane] = {}

    def of(self, topic_id: int) -> Lane | None:
        return self._rows.get(topic_id)

    @borrow()
    def read(self) -> Collection[int]:
        """Read them again; give the topics that have one."""
        self._rows = {lane.pk: lane for lane in Lane.objects.possible()}
        return self._rows.keys()


def serve(*, stop: threading.Event, clock: Clock) -> None:
    """Keep a thread for each lane, new ones too, until told to stop."""
    _make_partitions(stop, clock)
    lanes: dict[int, threading.Thread] = {}
    rows, locks = Rows(), Locks("lane locks", trust=TRUST_LOCKS)
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
                    lanes[topic_id] = _start(runner)
        except (OperationalError, InterfaceError) as trouble:
            log.warning("the lanes cannot be read: %s", trouble)
            connection.close()
        stop.wait(READ_ROWS_EVERY)
    connection.close()
    # A lane that does not end keeps its lock: it goes with the process.
    if _have_ended(lanes.values()):
        locks.close()


def _make_partitions(stop: threading.Event, clock: Clock) -> None:
    """Make those of the next days; wait for Postgres, which may start after us."""
    while not stop.is_set():
        try:
            with borrow():
                by_day.make(today=clock().date())
        except (OperationalError, InterfaceError) as trouble:
            log.warning("the lanes wait for Postgres: %s", trouble)
            connection.close()
        else:
            return
        stop.wait(READ_ROWS_EVERY)


def _start(runner: LaneRunner) -> threading.Thread:
    thread = threading.Thread(
        target=runner.run, name=f"lane-{runner.topic_id}", daemon=True
    )
    thread.start()
    return thread


def _have_ended(lanes: Collection[threading.Thread]) -> bool:
    """Wait for the lanes to end, for so long in all: a broker may not answer."""
    until = time.monotonic() + END_WITHIN
    for lane in lanes:
        lane.join(timeout=max(0.0, until - time.monotonic()))
    return not any(lane.is_alive() for lane in lanes)
