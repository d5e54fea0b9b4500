"""Lanes: each drains the dead-letter queue of one topic, under a lock of its own.

A dead letter is acknowledged only after the commit that holds it. Whatever goes wrong
before leaves it in its queue, and the lane comes back for it with a longer breath.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connection

from apps.bookmarks import services as bookmarks
from apps.brokers import services as brokers
from apps.brokers.models import Topic
from apps.brokers.ports import DeadLetter, DeadLetterReader, TopicAdmin
from apps.capture import partitions as by_day
from apps.capture import services
from apps.capture.models import HeldDeadLetter
from apps.capture.occurrence import from_dead_letter
from apps.core import lock
from apps.core.errors import Invalid, Refused, Unavailable

log = logging.getLogger(__name__)

BATCH = 500
WAIT = 1.0
OBSERVE_EVERY = 2.0
LOOK_FOR_TOPICS_EVERY = 5.0
BACK_OFF_BASE = 0.5
BACK_OFF_CAP = 15.0

Clock = Callable[[], datetime]
AWAY = (Unavailable, Refused, Invalid, OperationalError, InterfaceError)


class Lane:
    """Drain one topic until told to stop."""

    def __init__(self, *, topic: Topic, stop: threading.Event, clock: Clock) -> None:
        self.topic = topic
        self.stop = stop
        self.clock = clock
        self._troubles = 0

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._hold_and_drain()
            except AWAY as trouble:
                self._say_away(trouble)
            finally:
                connection.close()
            self.stop.wait(self._breath())

    def _hold_and_drain(self) -> None:
        # Read again each time: its broker may have moved since.
        self.topic = Topic.objects.select_related("broker").get(pk=self.topic.pk)
        with lock.attempt(f"lane:{self.topic.pk}") as held:
            if held is None:
                return
            with Drain(topic=self.topic, clock=self.clock) as drain:
                while not self.stop.is_set() and not held.lost():
                    drain.once(wait=WAIT)
                    self._troubles = 0

    def _breath(self) -> float:
        highest = min(BACK_OFF_CAP, BACK_OFF_BASE * 2 ** min(self._troubles, 10))
        return BACK_OFF_BASE + random.uniform(0, highest)  # noqa: S311

    def _say_away(self, trouble: Exception) -> None:
        self._troubles += 1
        log.warning("the lane of %s waits: %s", self.topic.name, trouble)
        try:
            brokers.note_lane(
                topic_id=self.topic.pk,
                state="away",
                detail=str(trouble),
                now=self.clock(),
            )
        except DatabaseError as silenced:
            # Postgres itself is away: the page that would show this cannot be had.
            log.warning("and cannot say so: %s", silenced)


class Drain:
    """The work of one lane, step by step; also what `manage.py capture` does."""

    def __init__(self, *, topic: Topic, clock: Clock) -> None:
        self.topic = topic
        self.clock = clock
        self.reader: DeadLetterReader = brokers.reader_of(topic)
        self.admin: TopicAdmin = brokers.admin_of(topic)
        self._observed_at: datetime | None = None

    def __enter__(self) -> Drain:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.admin.close()

    def once(self, *, wait: float) -> int:
        """Take one batch and keep house; give the number of dead letters captured."""
        letters = self.reader.read(limit=BATCH, wait=wait)
        captured = self._capture(letters)
        self._keep_house()
        return captured

    def _capture(self, letters: Sequence[DeadLetter]) -> int:
        limit = settings.POISONWEB_BODY_LIMIT
        taken = [letter for letter in letters if len(letter.body) <= limit]
        for letter in letters:
            if len(letter.body) > limit:
                self._hold(letter, f"too large: the limit is {limit} bytes")
        kept = self._write(taken)
        if kept:
            self.reader.acknowledge([letter.bookmark for letter in kept])
            HeldDeadLetter.objects.filter(
                topic=self.topic, bookmark__in=[letter.bookmark for letter in kept]
            ).delete()
        return len(kept)

    def _write(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Write a batch; one that the record refuses is split until it stands alone."""
        if not letters:
            return []
        now = self.clock()
        try:
            services.write(
                occurrences=[
                    from_dead_letter(letter, topic=self.topic, now=now)
                    for letter in letters
                ],
                now=now,
            )
        except (OperationalError, InterfaceError):
            raise  # Postgres is away; no letter is to blame
        except (DatabaseError, ValueError) as refusal:
            if len(letters) == 1:
                log.exception("a dead letter of %s is refused", self.topic.name)
                self._hold(letters[0], f"cannot be stored: {refusal}")
                return []
            half = len(letters) // 2
            return [*self._write(letters[:half]), *self._write(letters[half:])]
        return list(letters)

    def _hold(self, letter: DeadLetter, reason: str) -> None:
        HeldDeadLetter.objects.update_or_create(
            topic=self.topic,
            bookmark=letter.bookmark,
            defaults={
                "reason": reason[:500],
                "size": letter.size,
                "seen_at": self.clock(),
            },
        )

    def _keep_house(self) -> None:
        """Dead-letter what consumers give up on, and note how far they have read."""
        now = self.clock()
        since = self._observed_at
        if since is not None and (now - since).total_seconds() < OBSERVE_EVERY:
            return
        self._observed_at = now
        moved = self.reader.dead_letter_exhausted()
        if moved:
            log.info("dead-lettered %d messages of %s", moved, self.topic.name)
        bookmarks.observe(topic=self.topic, consumers=self.admin.consumers(), now=now)
        depth = self.admin.depth()
        detail = "" if depth is None else f"{depth} in the dead-letter queue"
        brokers.note_lane(
            topic_id=self.topic.pk, state="running", detail=detail, now=now
        )


def serve(*, stop: threading.Event, clock: Clock) -> None:
    """Keep one lane for each drained topic, new ones too, until told to stop."""
    by_day.make(today=clock().date())
    lanes: dict[int, threading.Thread] = {}
    while not stop.is_set():
        try:
            for topic in Topic.objects.drained().select_related("broker"):
                if topic.pk not in lanes or not lanes[topic.pk].is_alive():
                    lanes[topic.pk] = _start(topic, stop, clock)
        except (OperationalError, InterfaceError) as trouble:
            log.warning("the topics cannot be read: %s", trouble)
            connection.close()
        stop.wait(LOOK_FOR_TOPICS_EVERY)
    connection.close()
    for lane in lanes.values():
        lane.join(timeout=10)


def _start(topic: Topic, stop: threading.Event, clock: Clock) -> threading.Thread:
    lane = Lane(topic=topic, stop=stop, clock=clock)
    thread = threading.Thread(target=lane.run, name=f"lane-{topic.pk}", daemon=True)
    thread.start()
    return thread
