"""Draining: dead letters into the record, and only then out of their queue.

1. A batch is read; it stays in its queue, hidden from others while it is ours.
2. It is committed. A letter that the record refuses is found by halving, and held.
3. In mode tee, copies go to the other queue, and their broker confirms them.
4. Only what is through both is acknowledged.

Whatever dies between two of these leaves the letter in its queue. It comes back, is
known by its name (or as `deliveries` tells), and goes on from 3: it is written once,
and its copy may go out twice, but never not at all.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as waited
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Self, TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections, transaction

from apps.brokers.ports import DeadLetter, DeadLetterReader, OutcomeKind
from apps.brokers.row_locks import hold
from apps.brokers.services import topics as brokers
from apps.brokers.services.topics import Addressed, RoutingPublisher
from apps.capture.intake import services, unnamed_letters
from apps.capture.intake.occurrence import (
    Occurrence,
    digest_of_delivery,
    from_dead_letter,
)
from apps.capture.lanes.monitor import Clock, LaneMonitor, note_captured
from apps.capture.lanes.throttling import BatchSize, Timer
from apps.capture.models import HeldDeadLetter, Lane, Mode, Sample
from apps.core.errors import Unavailable
from apps.core.postgres import refuses_value
from apps.core.sessions import borrow
from apps.core.text import storable
from poisonguard.contract import HEADERS_LIMIT

log = logging.getLogger(__name__)

WAIT = 1.0
TIDY_EVERY = 60.0
# A held letter that is hidden for a time comes back; one that does not is gone.
HELD_LIVES = 300.0
MOST_PEEKED = 1_000

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A letter that is in the record, under this report."""

    letter: DeadLetter
    report: uuid.UUID


class Drain:
    """The work of one lane in mode capture or tee, step by step."""

    def __init__(
        self, *, lane: Lane, clock: Clock, timer: Timer = time.monotonic
    ) -> None:
        self.lane = lane
        self.topic = lane.topic
        self.clock = clock
        self.timer = timer
        self.size = BatchSize()
        self.monitor = LaneMonitor(lane=lane, clock=clock, timer=timer)
        self.capabilities = self.monitor.capabilities
        self.reader: DeadLetterReader = brokers.reader_of(self.topic)
        self.copies = RoutingPublisher()
        # The reader belongs to this thread: what it must not wait for is done aside.
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aside")
        self._batch: list[str] = []
        self._held: set[str] = set()
        # Of those that are held, the captured ones whose copy was refused, and why.
        self._uncopied: dict[str, str] = {}
        self._in_hand: set[uuid.UUID] = set()
        self._tidied_at: float | None = None
        unnamed_letters.await_commits(topic=self.topic)
        # They are ours to take now; what observing showed of them is past.
        with borrow():
            Sample.objects.filter(topic=self.topic).delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.capabilities.extends:
            self._aside.submit(connections.close_all).result()
        self._aside.shutdown()
        self.copies.close()
        self.reader.close()
        self.monitor.close()

    def once(self) -> float:
        """Take a batch if it is time to; give the seconds until it is again."""
        polling = self.monitor.polling
        if polling.is_due():
            polling.note(found=self.take(wait=WAIT) > 0)
            self.monitor_lane()
        else:
            self.monitor.heartbeat()
        return min(WAIT, polling.left())

    def take(self, *, wait: float) -> int:
        """Take one batch; give the number of letters that were read."""
        letters = self.reader.read(limit=self.size.value, wait=wait)
        if letters:
            began = self.timer()
            self._batch = [letter.handle for letter in letters]
            self._take(letters)
            self.size.note(self.timer() - began)
        else:
            self._tidy()
        return len(letters)

    def monitor_lane(self) -> None:
        """Dead-letter what consumers give up on, and look at the topic."""
        if not self.monitor.is_due():
            return
        moved = self.reader.dead_letter_exhausted()
        if moved:
            log.info("dead-lettered %d messages of %s", moved, self.topic.name)
        self.monitor.held_back = self._why_uncopied()
        depth = self.monitor.poll()
        if self._held:
            self._look_for_held(depth)

    def _keeping(self, work: Callable[[], Result]) -> Result:
        """Do what may be slow; meanwhile nobody else is handed the batch."""
        if not self.capabilities.extends:
            return work()
        done = self._aside.submit(work)
        while not waited([done], timeout=self.topic.visibility_timeout / 3).done:
            self.reader.extend(self._batch)
        return done.result()

    def _take(self, letters: Sequence[DeadLetter]) -> None:
        small = [letter for letter in letters if not _excess(letter)]
        for letter in letters:
            if excess := _excess(letter):
                self._hold(letter, excess)
        known = unnamed_letters.written(small, topic=self.topic, in_hand=self._in_hand)
        fresh = [letter for letter in small if letter.handle not in known]
        taken = [
            *(
                Taken(letter=letter, report=known[letter.handle])
                for letter in small
                if letter.handle in known
            ),
            *self._write(fresh),
        ]
        sent, trouble = self._copy(taken) if self._tees else (taken, "")
        self._acknowledge(sent)
        if trouble:
            raise Unavailable(f"copies to {self.lane.tee_queue}: {trouble}")

    @property
    def _tees(self) -> bool:
        return self.lane.mode == Mode.TEE

    def _write(self, letters: Sequence[DeadLetter]) -> list[Taken]:
        """Write a batch; one that the record refuses is split until it stands alone."""
        if not letters:
            return []
        now = self.clock()
        try:
            occurrences = [
                from_dead_letter(
                    letter, topic=self.topic, capabilities=self.capabilities, now=now
                )
                for letter in letters
            ]
            self._keeping(partial(_write, occurrences, now=now))
        except (DatabaseError, InterfaceError, ValueError) as refusal:
            if not refuses_value(refusal):
                raise  # Postgres is away, or not as we need it; no letter is to blame
            if len(letters) == 1:
                log.exception("a dead letter of %s is refused", self.topic.name)
                self._hold(letters[0], f"cannot be stored: {refusal}")
                return []
            half = len(letters) // 2
            return [*self._write(letters[:half]), *self._write(letters[half:])]
        return [
            Taken(letter=letter, report=occurrence.report_id)
            for letter, occurrence in zip(letters, occurrences, strict=True)
        ]

    def _copy(self, taken: Sequence[Taken]) -> tuple[list[Taken], str]:
        """Send copies; give those that arrived, and why nobody knows of others."""
        messages = [
            Addressed(
                topic=self.topic,
                queue=self.lane.tee_queue,
                body=one.letter.body,
                headers=one.letter.headers,
                dedupe=f"poisonweb-tee-{one.report}",
            )
            for one in taken
        ]
        outcomes = self._keeping(partial(self.copies.publish, messages))
        sent, trouble = [], ""
        for one, outcome in zip(taken, outcomes, strict=True):
            if outcome.kind in {OutcomeKind.SENT, OutcomeKind.DUPLICATE}:
                sent.append(one)
            elif outcome.kind is OutcomeKind.REFUSED:
                self._in_hand.add(one.report)
                self._uncopied[_name(one.letter)] = outcome.detail
                self._hold(one.letter, f"captured, but not copied: {outcome.detail}")
            else:
                trouble = outcome.detail or "the broker did not answer"
        return sent, trouble

    def _why_uncopied(self) -> str:
        """Say how many letters wait for their copy, and why; "" where none does."""
        if not self._uncopied:
            return ""
        *_, why = self._uncopied.values()
        return (
            f"Not copied to {self.lane.tee_queue}, so held in the dead-letter queue: "
            f"{len(self._uncopied)}. {why}"
        )

    def _acknowledge(self, taken: Sequence[Taken]) -> None:
        if not taken:
            return
        self.reader.acknowledge([one.letter.handle for one in taken])
        unnamed_letters.acknowledged(
            [one.report for one in taken if not one.letter.bookmark]
        )
        self._let_go({_name(one.letter) for one in taken})
        note_captured(lane=self.lane, number=len(taken))
        self.monitor.rate.add(len(taken))

    @borrow()
    def _hold(self, letter: DeadLetter, reason: str) -> None:
        self._held.add(_name(letter))
        why = storable(reason, limit=500)
        told = {"reason": why, "size": letter.size, "seen_at": self.clock()}
        with transaction.atomic():
            hold(topics=[self.topic.pk])
            HeldDeadLetter.objects.update_or_create(
                topic=self.topic, bookmark=_name(letter), defaults=told
            )

    @borrow()
    def _let_go(self, names: set[str]) -> None:
        self._held -= names
        for name in names & self._uncopied.keys():
            del self._uncopied[name]
        HeldDeadLetter.objects.filter(topic=self.topic, bookmark__in=names).delete()

    @borrow()
    def _tidy(self) -> None:
        """Strike off what has left the queue: all of it has been read by now."""
        at = self._tidied_at
        if at is not None and self.timer() - at < TIDY_EVERY:
            return
        self._tidied_at, now = self.timer(), self.clock()
        listed = HeldDeadLetter.objects.filter(topic=self.topic)
        if self.capabilities.extends:
            lives = max(HELD_LIVES, 3 * self.topic.visibility_timeout)
            gone = listed.filter(seen_at__lt=now - timedelta(seconds=lives))
            self._let_go(set(gone.values_list("bookmark", flat=True)))
        else:
            listed.exclude(bookmark__in=self._held).delete()
        unnamed_letters.forget(topic=self.topic, in_hand=self._in_hand, now=now)

    def _look_for_held(self, depth: int | None) -> None:
        """Strike off the list what somebody else took out of the queue."""
        if self.capabilities.peeks and not self.capabilities.extends:
            there = {_name(letter) for letter in self.reader.peek(limit=MOST_PEEKED)}
            if depth is not None and len(there) >= depth:
                self._let_go(self._held - there)


@borrow()
def _write(occurrences: Sequence[Occurrence], *, now: datetime) -> None:
    services.write(occurrences=occurrences, now=now)


def _excess(letter: DeadLetter) -> str:
    """Say what of a letter is more than is stored; "" where all of it is."""
    if len(letter.body) > settings.POISONWEB_BODY_LIMIT:
        return f"too large: the limit is {settings.POISONWEB_BODY_LIMIT} bytes"
    if len(letter.headers) > HEADERS_LIMIT:
        return f"it has {len(letter.headers)} headers: the limit is {HEADERS_LIMIT}"
    return ""


def _name(letter: DeadLetter) -> str:
    """Name a letter on the list of those that are held, also one without a name."""
    return letter.bookmark or f"digest/{digest_of_delivery(letter).hex()}"
