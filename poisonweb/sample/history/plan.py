"""What happened on each day: drawn by lot, and the same for the same first day.

The plan of a day holds the messages that failed on it and all that became of them,
though most of that was on the next one. So each day can be made for itself, and once it
is made nothing of it is left to be decided, but for a handful on the last.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum

from poisonweb.sample.history import weeks as calendar
from poisonweb.sample.history.streams import (
    RELEASE,
    STREAMS,
    Fate,
    Fault,
    Source,
    Stream,
)
from poisonweb.sample.history.weeks import Weeks
from poisonweb.sample.messages import ORDERS

SLOT = timedelta(minutes=10)
SLOTS_OF_AN_HOUR, SLOTS_OF_A_DAY = 6, 144
MOST_OF_A_DAY = 10_000
RETRIED = 0.01
# Whoever sits down to decide waits a while for the answers.
TO_CONFIRM, TO_RECUR = timedelta(minutes=3), timedelta(minutes=5)
TO_DROP, TO_REDRIVE_AGAIN = timedelta(minutes=12), timedelta(minutes=18)
SITTING = timedelta(minutes=35)
FIRST_SITTING, LAST_SITTING = (8, 40), (23, 20)
LONGEST_WAIT = 3  # days, from a Friday to the Monday

REDRIVES_OF_RELEASE = "sample history: billing 1.9 is rolled back"
REDRIVES = "sample history: whoever was away answers again"
DROPS = "sample history: the senders have sent them again, corrected"


@dataclass(frozen=True, kw_only=True, slots=True)
class Poisoned:
    """One message that failed, and its fate; `number` tells it from all others."""

    stream: Stream
    fault: Fault
    number: int
    failed_at: datetime
    client: str
    version: str
    fate: Fate

    def bookmark(self, at: datetime) -> str:
        """Name the copy of it that was delivered then."""
        return f"{int(at.timestamp() * 1000)}-{self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """What one client did in the ten minutes from `minute` on."""

    stream: Stream
    client: str
    minute: datetime
    handled: int
    failed: int
    skipped: int
    retried: int
    durations: tuple[tuple[int, int], ...]


class What(StrEnum):
    REDRIVEN = "redriven"
    CONFIRMED = "confirmed"
    RECURRED = "recurred"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What became of some poisons at one moment; `reason` if somebody decided it."""

    at: datetime
    what: What
    poisons: tuple[Poisoned, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """What failed on a day, in order; what was counted; and what became of it."""

    day: date
    poisons: tuple[Poisoned, ...]
    counts: tuple[Count, ...]
    steps: tuple[Step, ...]


def plan(weeks: Weeks, day: date) -> Day:
    """Draw one of the days."""
    return _Draw(weeks, day).draw()


@dataclass(kw_only=True, slots=True)
class _Tally:
    handled: int = 0
    failed: int = 0
    skipped: int = 0
    retried: int = 0
    durations: Counter[int] = field(default_factory=Counter)


class _Draw:
    def __init__(self, weeks: Weeks, day: date) -> None:
        self.weeks = weeks
        self.day = day
        self.random = random.Random(f"{weeks.first} {day}")
        self.poisons: list[Poisoned] = []
        self.tallies: dict[tuple[Stream, str, datetime], _Tally] = {}

    def draw(self) -> Day:
        midnight = calendar.at(self.day, 0)
        for stream in STREAMS:
            for slot in range(SLOTS_OF_A_DAY):
                self._deliver(stream, midnight + slot * SLOT)
        self.poisons.sort(key=lambda poisoned: poisoned.failed_at)
        steps = tuple(self._steps())
        for step in steps:
            self._deliver_again(step)
        return Day(
            day=self.day,
            poisons=tuple(self.poisons),
            counts=tuple(self._counts()),
            steps=steps,
        )

    # What was delivered, and what of it failed.

    def _deliver(self, stream: Stream, start: datetime) -> None:
        likely = [fault.likely(self.weeks, start) for fault in stream.faults]
        for fault in self.random.choices(
            (None, *stream.faults),
            (1 - sum(likely), *likely),
            k=self._number(stream, start),
        ):
            client = self.random.choice(stream.clients)
            self._end(stream, client, start, fault)
            if fault is not None:
                self._poison(stream, fault, client, start)
        if RELEASE in stream.faults and self.weeks.is_rolled_back(start):
            skipping = self._tally(stream, stream.clients[0], start)
            skipping.skipped += self.random.randint(1, 4)

    def _end(
        self, stream: Stream, client: str, minute: datetime, fault: Fault | None
    ) -> None:
        """Count one delivery; without a fault it was handled."""
        tally = self._tally(stream, client, minute)
        tally.durations[self._duration(stream)] += 1
        if fault is None:
            tally.handled += 1
            tally.retried += self.random.random() < RETRIED
        else:
            tally.failed += 1
            tally.retried += fault.attempts - 1

    def _number(self, stream: Stream, start: datetime) -> int:
        if stream.topic == ORDERS and self.weeks.is_maintained(start):
            return 0
        usual = stream.daily * self.weeks.share(start) / SLOTS_OF_AN_HOUR
        return int(usual * self.random.uniform(0.7, 1.3) + self.random.random())

    def _duration(self, stream: Stream) -> int:
        buckets, parts = list(stream.durations), list(stream.durations.values())
        return self.random.choices(buckets, parts)[0]

    def _tally(self, stream: Stream, client: str, minute: datetime) -> _Tally:
        return self.tallies.setdefault((stream, client, minute), _Tally())

    def _poison(
        self, stream: Stream, fault: Fault, client: str, start: datetime
    ) -> None:
        before = self.weeks.number_of(self.day) * MOST_OF_A_DAY
        self.poisons.append(
            Poisoned(
                stream=stream,
                fault=fault,
                number=before + len(self.poisons) + 1,
                failed_at=start + self.random.random() * SLOT,
                client=client,
                version=stream.version(self.weeks, start),
                fate=self._fate(fault),
            )
        )

    def _fate(self, fault: Fault) -> Fate:
        if fault.is_left_to_the_newcomer and self.day == self.weeks.last:
            return Fate.OPEN
        return self.random.choices(list(fault.fates), list(fault.fates.values()))[0]

    # What became of it: mostly when somebody sat down to it on the next working day.

    def _steps(self) -> Iterator[Step]:
        broken = [p for p in self.poisons if p.fault is RELEASE]
        others = [p for p in self.poisons if p.fault is not RELEASE]
        cleaned_up = calendar.at(self.day, calendar.CLEANED_UP.hour)
        yield from _sitting(broken, start=cleaned_up, why=REDRIVES_OF_RELEASE)
        yield from _sitting(others, start=self._start_of_sitting(), why=REDRIVES)

    def _start_of_sitting(self) -> datetime:
        """Give each day a time of its own, so that decisions come in order."""
        day = self.weeks.decided_on(self.day)
        if day == self.weeks.last:
            ahead = self.weeks.number_of(self.day) - self.weeks.number_of(day)
            return calendar.at(day, *LAST_SITTING) + ahead * SITTING
        place = LONGEST_WAIT - (day - self.day).days
        return calendar.at(day, *FIRST_SITTING) + place * SITTING

    def _deliver_again(self, step: Step) -> None:
        if step.what not in {What.CONFIRMED, What.RECURRED}:
            return
        minute = step.at - timedelta(minutes=step.at.minute % 10)
        for p in step.poisons:
            fault = p.fault if step.what is What.RECURRED else None
            self._end(p.stream, p.client, minute, fault)

    def _counts(self) -> Iterator[Count]:
        for (stream, client, minute), tally in self.tallies.items():
            if stream.source is not Source.NONE:
                yield Count(
                    stream=stream,
                    client=client,
                    minute=minute,
                    handled=tally.handled,
                    failed=tally.failed,
                    skipped=tally.skipped,
                    retried=tally.retried,
                    durations=tuple(sorted(tally.durations.items())),
                )


def _sitting(
    poisons: Sequence[Poisoned], *, start: datetime, why: str
) -> Iterator[Step]:
    """Redrive what is worth it, drop what is not, and try some once more."""
    dropped = tuple(p for p in poisons if p.fate.dropped)
    steps = (
        *_round(poisons, 0, start, why),
        Step(at=start + TO_DROP, what=What.DROPPED, poisons=dropped, reason=DROPS),
        *_round(poisons, 1, start + TO_REDRIVE_AGAIN, why),
    )
    return (step for step in steps if step.poisons)


def _round(
    poisons: Iterable[Poisoned], turn: int, start: datetime, why: str
) -> Iterator[Step]:
    answers = {p: p.fate.answers[turn] for p in poisons if len(p.fate.answers) > turn}
    confirmed = tuple(p for p, answer in answers.items() if answer.confirms)
    recurred = tuple(p for p, answer in answers.items() if answer.recurs)
    yield Step(at=start, what=What.REDRIVEN, poisons=tuple(answers), reason=why)
    yield Step(at=start + TO_CONFIRM, what=What.CONFIRMED, poisons=confirmed)
    yield Step(at=start + TO_RECUR, what=What.RECURRED, poisons=recurred)
