"""The plan of each day: drawn at random, with the same result for the same first day.

The plan of a day contains the messages that failed on that day and all their later
steps, most of them on the next day. So every day can be written independently, and
after that no message of it is open, except for a handful on the last day.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum

from apps.reports.report_run_states import DeliveredSource
from poisonweb.sample.history import traffic_calendar as calendar
from poisonweb.sample.history.traffic_calendar import Weeks
from poisonweb.sample.history.traffic_streams_and_faults import (
    RELEASE,
    STREAMS,
    FailureMode,
    Fate,
    TrafficStream,
)
from poisonweb.sample.producer_messages import ORDERS

SLOT = timedelta(minutes=10)
SLOTS_OF_AN_HOUR, SLOTS_OF_A_DAY = 6, 144
MOST_OF_A_DAY = 10_000
RETRIED = 0.01
# In a triage session, a person waits a while for the results.
TO_CONFIRM, TO_RECUR = timedelta(minutes=3), timedelta(minutes=5)
TO_DROP, TO_REDRIVE_AGAIN = timedelta(minutes=12), timedelta(minutes=18)
SESSION = timedelta(minutes=35)
FIRST_SESSION, LAST_SESSION = (8, 40), (23, 20)
LONGEST_WAIT = 3  # days, from Friday to Monday

REDRIVES_OF_RELEASE = "sample history: billing 1.9 is rolled back"
REDRIVES = "sample history: the services that were down answer again"
DROPS = "sample history: the senders have sent them again, corrected"


@dataclass(frozen=True, kw_only=True, slots=True)
class Poisoned:
    """A message that failed, and its fate; `number` is unique."""

    stream: TrafficStream
    fault: FailureMode
    number: int
    failed_at: datetime
    client: str
    version: str
    fate: Fate

    def bookmark(self, at: datetime) -> str:
        """Return the Redis bookmark of a copy of a made-up message, delivered then."""
        return f"{int(at.timestamp() * 1000)}-{self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCounts:
    """The numbers of one client in the ten minutes from `minute` on."""

    stream: TrafficStream
    client: str
    minute: datetime
    handled: int
    failed: int
    skipped: int
    retried: int
    durations: tuple[tuple[int, int], ...]


class StepKind(StrEnum):
    REDRIVEN = "redriven"
    CONFIRMED = "confirmed"
    RECURRED = "recurred"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """A change of some poisons at one moment; `reason` if a person decided it."""

    at: datetime
    kind: StepKind
    poisons: tuple[Poisoned, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DayPlan:
    """The failures of a day, in order; its counts; and the later steps."""

    day: date
    poisons: tuple[Poisoned, ...]
    counts: tuple[ClientCounts, ...]
    steps: tuple[PlannedStep, ...]


def plan(weeks: Weeks, day: date) -> DayPlan:
    """Draw the plan of one day of the sample's invented history."""
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
        self.tallies: dict[tuple[TrafficStream, str, datetime], _Tally] = {}

    def draw(self) -> DayPlan:
        """Draw a made-up day's deliveries by stream, then decisions about failures."""
        midnight = calendar.at(self.day, 0)
        for stream in STREAMS:
            for slot in range(SLOTS_OF_A_DAY):
                self._draw_slot(stream, midnight + slot * SLOT)
        self.poisons.sort(key=lambda poisoned: poisoned.failed_at)
        steps = tuple(self._steps())
        for step in steps:
            self._deliver_again(step)
        return DayPlan(
            day=self.day,
            poisons=tuple(self.poisons),
            counts=tuple(self._counts()),
            steps=steps,
        )

    # Deliveries and failures

    def _draw_slot(self, stream: TrafficStream, start: datetime) -> None:
        """Draw the made-up deliveries of a stream in ten minutes, and which fail."""
        likely = [fault.likely(self.weeks, start) for fault in stream.faults]
        for fault in self.random.choices(
            (None, *stream.faults),
            (1 - sum(likely), *likely),
            k=self._draw_message_count(stream, start),
        ):
            client = self.random.choice(stream.clients)
            self._count_delivery(stream, client, start, fault)
            if fault is not None:
                self._add_poison(stream, fault, client, start)
        if RELEASE in stream.faults and self.weeks.is_rolled_back(start):
            skipping = self._tally(stream, stream.clients[0], start)
            skipping.skipped += self.random.randint(1, 4)

    def _count_delivery(
        self,
        stream: TrafficStream,
        client: str,
        minute: datetime,
        fault: FailureMode | None,
    ) -> None:
        """Count one delivery of the sample as handled, or as failed with its fault."""
        tally = self._tally(stream, client, minute)
        tally.durations[self._duration(stream)] += 1
        if fault is None:
            tally.handled += 1
            tally.retried += self.random.random() < RETRIED
        else:
            tally.failed += 1
            tally.retried += fault.attempts - 1

    def _draw_message_count(self, stream: TrafficStream, start: datetime) -> int:
        """Draw how many messages a stream of the sample has in ten minutes."""
        if stream.topic == ORDERS and self.weeks.is_maintained(start):
            return 0
        usual = stream.daily * self.weeks.share(start) / SLOTS_OF_AN_HOUR
        return int(usual * self.random.uniform(0.7, 1.3) + self.random.random())

    def _duration(self, stream: TrafficStream) -> int:
        """Draw the bucket of a made-up delivery's handling time."""
        buckets, parts = list(stream.durations), list(stream.durations.values())
        return self.random.choices(buckets, parts)[0]

    def _tally(self, stream: TrafficStream, client: str, minute: datetime) -> _Tally:
        """Return the planned counters of a made-up consumer in a minute."""
        return self.tallies.setdefault((stream, client, minute), _Tally())

    def _add_poison(
        self, stream: TrafficStream, fault: FailureMode, client: str, start: datetime
    ) -> None:
        """Add a made-up failed message to the plan; draw what will become of it."""
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

    def _fate(self, fault: FailureMode) -> Fate:
        """Draw what becomes of a made-up failed message.

        The last day leaves some undecided.
        """
        if fault.is_left_to_the_newcomer and self.day == self.weeks.last:
            return Fate.OPEN
        return self.random.choices(list(fault.fates), list(fault.fates.values()))[0]

    # Later steps, mostly in a triage session on the next working day

    def _steps(self) -> Iterator[PlannedStep]:
        """Yield the day's made-up decisions about failed messages, and outcomes."""
        of_release = [p for p in self.poisons if p.fault is RELEASE]
        others = [p for p in self.poisons if p.fault is not RELEASE]
        cleaned_up = calendar.at(self.day, calendar.CLEANED_UP.hour)
        yield from _triage_session(
            of_release, start=cleaned_up, why=REDRIVES_OF_RELEASE
        )
        yield from _triage_session(others, start=self._session_start(), why=REDRIVES)

    def _session_start(self) -> datetime:
        """Return when a made-up day's triage begins.

        The days differ, to order decisions.
        """
        day = self.weeks.decided_on(self.day)
        if day == self.weeks.last:
            ahead = self.weeks.number_of(self.day) - self.weeks.number_of(day)
            return calendar.at(day, *LAST_SESSION) + ahead * SESSION
        place = LONGEST_WAIT - (day - self.day).days
        return calendar.at(day, *FIRST_SESSION) + place * SESSION

    def _deliver_again(self, step: PlannedStep) -> None:
        """Count a step's deliveries of redriven messages in the planned counters."""
        if step.kind not in {StepKind.CONFIRMED, StepKind.RECURRED}:
            return
        minute = step.at - timedelta(minutes=step.at.minute % 10)
        for p in step.poisons:
            fault = p.fault if step.kind is StepKind.RECURRED else None
            self._count_delivery(p.stream, p.client, minute, fault)

    def _counts(self) -> Iterator[ClientCounts]:
        """Yield made-up counters of each consumer, for each ten minutes.

        Omit streams whose messages neither consumers nor brokers count.
        """
        for (stream, client, minute), tally in self.tallies.items():
            if stream.source is not DeliveredSource.NONE:
                yield ClientCounts(
                    stream=stream,
                    client=client,
                    minute=minute,
                    handled=tally.handled,
                    failed=tally.failed,
                    skipped=tally.skipped,
                    retried=tally.retried,
                    durations=tuple(sorted(tally.durations.items())),
                )


def _triage_session(
    poisons: Sequence[Poisoned], *, start: datetime, why: str
) -> Iterator[PlannedStep]:
    """Return the steps of a made-up triage session about some failed messages.

    Redrive some, drop others, redrive some a second time. Omit steps without messages.
    """
    dropped = tuple(p for p in poisons if p.fate.dropped)
    steps = (
        *_redrive_round(poisons, 0, start, why),
        PlannedStep(
            at=start + TO_DROP, kind=StepKind.DROPPED, poisons=dropped, reason=DROPS
        ),
        *_redrive_round(poisons, 1, start + TO_REDRIVE_AGAIN, why),
    )
    return (step for step in steps if step.poisons)


def _redrive_round(
    poisons: Iterable[Poisoned], turn: int, start: datetime, why: str
) -> Iterator[PlannedStep]:
    """Yield the steps of a made-up redrive: the redrive itself and its results.

    The results are the messages that are confirmed, and those that fail again.
    """
    answers = {p: p.fate.answers[turn] for p in poisons if len(p.fate.answers) > turn}
    handled = tuple(p for p, answer in answers.items() if answer.is_confirmed)
    recurred = tuple(p for p, answer in answers.items() if answer.recurs)
    yield PlannedStep(
        at=start, kind=StepKind.REDRIVEN, poisons=tuple(answers), reason=why
    )
    yield PlannedStep(at=start + TO_CONFIRM, kind=StepKind.CONFIRMED, poisons=handled)
    yield PlannedStep(at=start + TO_RECUR, kind=StepKind.RECURRED, poisons=recurred)
