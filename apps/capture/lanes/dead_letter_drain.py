"""Drain a dead-letter queue: capture each letter, and only then remove it.

1. Read a batch. It stays in its queue, hidden from other readers.
2. Commit it. If Postgres refuses a letter, halve the batch to find it, and hold it.
3. In mode tee, send copies to the other queue; its broker confirms them.
4. Acknowledge the letters that passed both steps.

A process that dies between two steps leaves the letter in its queue. The letter comes
back, is recognized by its name (or by `dead_letter_deduplication`) and continues with
step 3: it is captured once, and its copy is sent at least once.

The messages of a topic of requests take the same steps: in step 2 each becomes a
delivery (`requests_from_messages`), or is captured with the reason why it cannot.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Self, TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections, transaction

from apps.brokers import failure_headers
from apps.brokers.adapter_contract import DeadLetter, DeadLetterReader, OutcomeKind
from apps.brokers.failure_headers import Story
from apps.brokers.row_locks import lock_topics
from apps.brokers.services import topics_and_routing_publisher as brokers
from apps.brokers.services.topics_and_routing_publisher import (
    RoutedMessage,
    RoutingPublisher,
)
from apps.capture.intake import (
    dead_letter_deduplication,
    requests_from_messages,
    services,
)
from apps.capture.intake.occurrence import (
    Occurrence,
    digest_of_delivery,
    from_dead_letter,
)
from apps.capture.intake.requests_from_messages import RequestRefusal
from apps.capture.lanes.batch_size_and_poll_interval import BatchSize, Timer
from apps.capture.lanes.depth_polling import Clock, LaneMonitor, count_captured
from apps.capture.models import HeldDeadLetter, Lane, Mode, Sample
from apps.core.errors import Unavailable
from apps.core.postgres_connections import borrow
from apps.core.text_cleaning import storable
from apps.core.values_refused_by_postgres import refuses_value
from poisonguard.contract import HEADERS_LIMIT

log = logging.getLogger(__name__)

READ_SECONDS = 1.0
TIDY_INTERVAL = 60.0
# A held letter comes back when it is visible again; after this long, it has left.
HELD_FOR = 300.0
MOST_PEEKED = 1_000
NO_REFUSALS: Mapping[str, RequestRefusal] = MappingProxyType({})

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedLetter:
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
        # The reader belongs to this thread; slow work runs on another one.
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aside")
        self._batch: list[str] = []
        self._held_names: set[str] = set()
        # Held letters that are captured but whose copy was refused, and why.
        self._uncopied: dict[str, str] = {}
        self._in_hand: set[uuid.UUID] = set()
        self._tidied_at: float | None = None
        dead_letter_deduplication.await_commits(topic=self.topic)
        # The lane now removes letters, so the samples of observe mode are outdated.
        with borrow():
            Sample.objects.filter(topic=self.topic).delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the reader, the senders of copies, and the monitor."""
        if self.capabilities.extends:
            self._aside.submit(connections.close_all).result()
        self._aside.shutdown()
        self.copies.close()
        self.reader.close()
        self.monitor.close()

    def step(self) -> float:
        """Drain a batch of dead letters if due; return the seconds until the next."""
        if self.monitor.is_read_due():
            number = self.drain_batch(wait=READ_SECONDS)
            self.monitor.note_read(is_active=number > 0)
            self.monitor_lane()
        else:
            self.monitor.heartbeat()
        return min(READ_SECONDS, self.monitor.seconds_to_read())

    def drain_batch(self, *, wait: float) -> int:
        """Drain a batch of dead letters; return the number that was read."""
        letters = self.reader.read(limit=self.size.value, wait=wait)
        if letters:
            started_at = self.timer()
            self._batch = [letter.handle for letter in letters]
            self._process_letters(letters)
            self.size.adjust(self.timer() - started_at)
        else:
            self._tidy()
        return len(letters)

    def monitor_lane(self) -> None:
        """Move exhausted messages to the dead-letter queue, and poll the topic."""
        if not self.monitor.is_due():
            return
        # Of requests we are the consumer, and the queue is the topic.
        moved = 0 if self._has_requests else self.reader.dead_letter_exhausted()
        if moved:
            log.info("dead-lettered %d messages of %s", moved, self.topic.name)
        self.monitor.held_reason = self._why_uncopied()
        depth = self.monitor.poll()
        if self._held_names:
            self._release_removed(depth)

    def _with_extension(self, work: Callable[[], Result]) -> Result:
        """Run slow work; meanwhile extend the visibility timeout of the letters."""
        if not self.capabilities.extends:
            return work()
        future = self._aside.submit(work)
        while not wait([future], timeout=self.topic.visibility_timeout / 3).done:
            self.reader.extend(self._batch)
        return future.result()

    def _process_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Capture a batch of dead letters, copy them if set, and acknowledge them.

        Too large ones are held in the queue. Raises Unavailable where a copy failed.
        """
        small = [letter for letter in letters if not _exceeded_limit(letter)]
        for letter in letters:
            if excess := _exceeded_limit(letter):
                self._hold(letter, excess)
        reports = dead_letter_deduplication.reports_of_captured(
            small, topic=self.topic, in_hand=self._in_hand
        )
        new = [letter for letter in small if letter.handle not in reports]
        captured = [
            *(
                CapturedLetter(letter=letter, report=reports[letter.handle])
                for letter in small
                if letter.handle in reports
            ),
            *(self._take_requests(new) if self._has_requests else self._capture(new)),
        ]
        finished, trouble = (
            self._send_copies(captured) if self._sends_copies else (captured, "")
        )
        self._acknowledge(finished)
        if trouble:
            raise Unavailable(f"copies to {self.lane.tee_queue}: {trouble}")

    @property
    def _sends_copies(self) -> bool:
        """Tell whether the lane sends copies of dead letters to another queue."""
        return self.lane.mode == Mode.TEE

    @property
    def _has_requests(self) -> bool:
        """Tell whether the lane drains a topic of requests to endpoints."""
        return self.topic.takes_requests

    def _take_requests(self, letters: Sequence[DeadLetter]) -> list[CapturedLetter]:
        """Store a batch of requests to endpoints; capture refused ones as failures."""
        take = partial(
            requests_from_messages.take,
            topic=self.topic,
            now=self.clock(),
        )
        requests = self._halving(letters, lambda batch: take(letters=batch))
        refusals = {
            each.letter.handle: each.refusal
            for each in requests
            if each.refusal is not None
        }
        return [
            *(
                CapturedLetter(letter=each.letter, report=each.identity)
                for each in requests
                if each.refusal is None
            ),
            *self._capture(
                [each.letter for each in requests if each.refusal is not None],
                refusals=refusals,
            ),
        ]

    def _capture(
        self,
        letters: Sequence[DeadLetter],
        *,
        refusals: Mapping[str, RequestRefusal] = NO_REFUSALS,
    ) -> list[CapturedLetter]:
        """Capture a batch of letters; `refusals` maps handles to refused requests."""
        return self._halving(letters, partial(self._capture_batch, refusals=refusals))

    def _capture_batch(
        self,
        letters: Sequence[DeadLetter],
        *,
        refusals: Mapping[str, RequestRefusal],
    ) -> list[CapturedLetter]:
        """Capture a batch of dead letters in one transaction, or raise."""
        now = self.clock()
        occurrences = [
            from_dead_letter(
                letter,
                topic=self.topic,
                capabilities=self.capabilities,
                story=_story_of_refusal(letter, refusals.get(letter.handle)),
                now=now,
            )
            for letter in letters
        ]
        _write(occurrences, now=now)
        return [
            CapturedLetter(letter=letter, report=occurrence.report_id)
            for letter, occurrence in zip(letters, occurrences, strict=True)
        ]

    def _halving(
        self,
        letters: Sequence[DeadLetter],
        store: Callable[[Sequence[DeadLetter]], list[Result]],
    ) -> list[Result]:
        """Store dead letters; if Postgres refuses one, halve the batch to find it.

        The refused letter is held in its queue. Returns the results of the others.
        """
        if not letters:
            return []
        try:
            return self._with_extension(partial(store, letters))
        except (DatabaseError, InterfaceError, ValueError) as refusal:
            if not refuses_value(refusal):
                raise  # Postgres is unavailable or misconfigured; no letter causes this
            if len(letters) == 1:
                log.exception("a dead letter of %s is refused", self.topic.name)
                self._hold(letters[0], f"cannot be stored: {refusal}")
                return []
        half = len(letters) // 2
        return [
            *self._halving(letters[:half], store),
            *self._halving(letters[half:], store),
        ]

    def _send_copies(
        self, captured: Sequence[CapturedLetter]
    ) -> tuple[list[CapturedLetter], str]:
        """Send copies of letters; return the confirmed ones, and the trouble or "".

        Letters whose copy the broker refuses are held in the dead-letter queue.
        """
        messages = [
            RoutedMessage(
                topic=self.topic,
                queue=self.lane.tee_queue,
                body=one.letter.body,
                headers=one.letter.headers,
                dedupe=f"poisonweb-tee-{one.report}",
            )
            for one in captured
        ]
        outcomes = self._with_extension(partial(self.copies.publish, messages))
        confirmed, trouble = [], ""
        for one, outcome in zip(captured, outcomes, strict=True):
            if outcome.kind in {OutcomeKind.SENT, OutcomeKind.DUPLICATE}:
                confirmed.append(one)
            elif outcome.kind is OutcomeKind.REFUSED:
                self._in_hand.add(one.report)
                self._uncopied[_held_key(one.letter)] = outcome.detail
                self._hold(one.letter, f"captured, but not copied: {outcome.detail}")
            else:
                trouble = outcome.detail or "the broker did not answer"
        return confirmed, trouble

    def _why_uncopied(self) -> str:
        """Return how many dead letters wait for their copy, and why; "" if none."""
        if not self._uncopied:
            return ""
        *_, why = self._uncopied.values()
        return (
            f"Not copied to {self.lane.tee_queue}, so held in the dead-letter queue: "
            f"{len(self._uncopied)}. {why}"
        )

    def _acknowledge(self, captured: Sequence[CapturedLetter]) -> None:
        """Remove captured dead letters from the queue, and their rows as held ones."""
        if not captured:
            return
        self.reader.acknowledge([one.letter.handle for one in captured])
        dead_letter_deduplication.delete_acknowledged(
            [one.report for one in captured if not one.letter.bookmark]
        )
        self._delete_held({_held_key(one.letter) for one in captured})
        count_captured(lane=self.lane, number=len(captured))
        self.monitor.count_letters(len(captured))

    @borrow()
    def _hold(self, letter: DeadLetter, reason: str) -> None:
        """Store a row that says why a dead letter stays in its queue."""
        self._held_names.add(_held_key(letter))
        reason = storable(reason, limit=500)
        facts = {"reason": reason, "size": letter.size, "seen_at": self.clock()}
        with transaction.atomic():
            lock_topics(topics=[self.topic.pk])
            HeldDeadLetter.objects.update_or_create(
                topic=self.topic, bookmark=_held_key(letter), defaults=facts
            )

    @borrow()
    def _delete_held(self, names: set[str]) -> None:
        """Delete the rows of held dead letters."""
        self._held_names -= names
        for name in names & self._uncopied.keys():
            del self._uncopied[name]
        HeldDeadLetter.objects.filter(topic=self.topic, bookmark__in=names).delete()

    @borrow()
    def _tidy(self) -> None:
        """Delete rows of dead letters that left the queue, at most once an interval.

        Call it after an empty read.
        """
        at = self._tidied_at
        if at is not None and self.timer() - at < TIDY_INTERVAL:
            return
        self._tidied_at, now = self.timer(), self.clock()
        listed = HeldDeadLetter.objects.filter(topic=self.topic)
        if self.capabilities.extends:
            lives = max(HELD_FOR, 3 * self.topic.visibility_timeout)
            expired = listed.filter(seen_at__lt=now - timedelta(seconds=lives))
            self._delete_held(set(expired.values_list("bookmark", flat=True)))
        else:
            listed.exclude(bookmark__in=self._held_names).delete()
        dead_letter_deduplication.prune(
            topic=self.topic, in_hand=self._in_hand, now=now
        )

    def _release_removed(self, depth: int | None) -> None:
        """Release dead letters in hand that others removed from the queue of a lane."""
        if self.capabilities.peeks and not self.capabilities.extends:
            present = {
                _held_key(letter) for letter in self.reader.peek(limit=MOST_PEEKED)
            }
            if depth is not None and len(present) >= depth:
                self._delete_held(self._held_names - present)


def _story_of_refusal(
    letter: DeadLetter, refusal: RequestRefusal | None
) -> Story | None:
    """Return the failure story of a letter refused as a request; None for another."""
    if refusal is None:
        return None
    return refusal.story(failure_headers.read(letter.headers))


@borrow()
def _write(occurrences: Sequence[Occurrence], *, now: datetime) -> None:
    """Store the failures of dead letters, or raise."""
    services.write(occurrences=occurrences, now=now)


def _exceeded_limit(letter: DeadLetter) -> str:
    """Return which limit a dead letter exceeds, or ""."""
    if len(letter.body) > settings.POISONWEB_BODY_LIMIT:
        return f"too large: the limit is {settings.POISONWEB_BODY_LIMIT} bytes"
    if len(letter.headers) > HEADERS_LIMIT:
        return f"it has {len(letter.headers)} headers: the limit is {HEADERS_LIMIT}"
    return ""


def _held_key(letter: DeadLetter) -> str:
    """Return the key of a held dead letter: its name or else its digest."""
    return letter.bookmark or f"digest/{digest_of_delivery(letter).hex()}"
