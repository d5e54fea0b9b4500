"""Lanes: one for each row whose topic has a dead-letter queue, under a lock of its own.

Every second a lane reads its row, its topic and its broker again: another mode, a
pause or other settings hold within two seconds, and nothing has to be started anew.
Whatever goes wrong leaves dead letters in their queue, and the lane comes back for
them with a longer breath.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any, Protocol

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.forms import model_to_dict

from apps.brokers.errors import QueueMissing, Removed
from apps.capture import partitions as by_day
from apps.capture.drain import Drain
from apps.capture.house import LOOK_EVERY, Clock, Watch, note
from apps.capture.models import Lane, LaneState, Mode
from apps.core import lock
from apps.core.errors import Invalid, Refused, Unavailable
from apps.core.lock import Lock
from apps.core.text import storable

log = logging.getLogger(__name__)

LOOK_FOR_LANES_EVERY = 1.0
READ_ROW_EVERY = 1.0
LOCK_EVERY = 1.0
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 15.0

AWAY = (Unavailable, Refused, Invalid, OperationalError, InterfaceError)


class Work(Protocol):
    """What a lane does while its row stays as it is."""

    def once(self) -> float:
        """Do one step, of about a second at most; give the seconds until the next."""

    def close(self) -> None: ...


class Still:
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


class Worker:
    """One lane, until told to stop or until its row is gone."""

    def __init__(self, *, topic_id: int, stop: threading.Event, clock: Clock) -> None:
        self.topic_id = topic_id
        self.stop = stop
        self.clock = clock
        self._troubles = 0

    def run(self) -> None:
        while not self.stop.is_set():
            breath = 0.0
            try:
                lane = self._row()
                if lane is None:
                    return
                breath = self._hold_and_work(lane)
            except Removed:
                log.info("the lane of topic %d ends with its topic", self.topic_id)
                return
            except QueueMissing as missing:
                self._say(LaneState.MISSING, missing, depth=None, oldest_at=None)
                breath = self._back_off()
            except AWAY as trouble:
                self._say(LaneState.AWAY, trouble)
                breath = self._back_off()
            finally:
                connection.close()
            self.stop.wait(breath)

    def _row(self) -> Lane | None:
        return Lane.objects.possible().filter(pk=self.topic_id).first()

    def _hold_and_work(self, lane: Lane) -> float:
        with lock.attempt(f"lane:{lane.pk}") as held:
            if held is None:
                return LOCK_EVERY
            work = _work(lane, self.clock)
            try:
                self._work(work, lane, held)
            finally:
                work.close()
        return 0.0

    def _work(self, work: Work, lane: Lane, held: Lock) -> None:
        """Go on as long as the row tells the same, and the lock is ours."""
        told, read_at = _told(lane), time.monotonic()
        while not self.stop.is_set():
            due = work.once()
            self._troubles = 0
            self.stop.wait(min(due, READ_ROW_EVERY))
            if time.monotonic() - read_at >= READ_ROW_EVERY:
                read_at = time.monotonic()
                now = self._row()
                if now is None or _told(now) != told or held.lost():
                    return

    def _back_off(self) -> float:
        highest = min(BACK_OFF_CAP, BACK_OFF_BASE * 2 ** min(self._troubles, 10))
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
        return Still(lane=lane, clock=clock)
    if lane.mode == Mode.OBSERVE:
        return Watch(lane=lane, clock=clock, timer=time.monotonic)
    return Drain(lane=lane, clock=clock)


def _told(lane: Lane) -> tuple[object, ...]:
    """Give what people have said of a lane, its topic and its broker."""
    ours = (lane.mode, lane.tee_queue, lane.paused)
    topic, broker = lane.topic, lane.topic.broker
    return (*ours, model_to_dict(topic), broker and model_to_dict(broker))


def serve(*, stop: threading.Event, clock: Clock) -> None:
    """Keep a thread for each lane, new ones too, until told to stop."""
    by_day.make(today=clock().date())
    lanes: dict[int, threading.Thread] = {}
    while not stop.is_set():
        try:
            for topic_id in Lane.objects.possible().values_list("pk", flat=True):
                if topic_id not in lanes or not lanes[topic_id].is_alive():
                    lanes[topic_id] = _start(topic_id, stop, clock)
        except (OperationalError, InterfaceError) as trouble:
            log.warning("the lanes cannot be read: %s", trouble)
            connection.close()
        stop.wait(LOOK_FOR_LANES_EVERY)
    connection.close()
    for lane in lanes.values():
        lane.join(timeout=10)


def _start(topic_id: int, stop: threading.Event, clock: Clock) -> threading.Thread:
    lane = Worker(topic_id=topic_id, stop=stop, clock=clock)
    thread = threading.Thread(target=lane.run, name=f"lane-{topic_id}", daemon=True)
    thread.start()
    return thread
