"""The numbers that the reports must show, counted from the plan of the history.

There is a line for every hour of a topic and consumer group with an event, and one for
every day of a problem. Numbers that no source counted are null.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path

from apps.reports.report_run_states import DeliveredSource
from poisonweb.sample.history.daily_failure_plan import (
    ClientCounts,
    DayPlan,
    PlannedStep,
    Poisoned,
    StepKind,
)
from poisonweb.sample.history.traffic_streams_and_faults import TrafficStream

COUNTED = ("delivered", "handled")
PROBLEM_NUMBERS = ("failed", "poisoned", "retried", *(kind.value for kind in StepKind))
NUMBERS = ("skipped", *PROBLEM_NUMBERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SummedNumbers:
    numbers: Counter[str] = field(default_factory=Counter)
    durations: Counter[int] = field(default_factory=Counter)


class ExpectedNumbers:
    """Add up the days; `failed` counts all failures, not only a message's first."""

    def __init__(self, days: Iterable[DayPlan]) -> None:
        self._hours: dict[tuple[date, int, TrafficStream], SummedNumbers] = {}
        self._problems: dict[tuple[date, TrafficStream, str], SummedNumbers] = {}
        for day in days:
            self._add(day)

    def write(self, path: Path) -> None:
        """Write the sample history's expected report numbers to a file, atomically."""
        draft = path.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in self.lines())
        draft.replace(path)

    def lines(self) -> Iterator[dict[str, object]]:
        """Yield the report numbers that the sample's history must lead to.

        There is a line per hour and per problem of a day.
        """
        for (day, hour, stream), tally in self._hours.items():
            is_counted = stream.source is not DeliveredSource.NONE
            yield {
                **_key(day, stream),
                "hour": hour,
                "source": stream.source.value,
                **{
                    name: tally.numbers[name] if is_counted else None
                    for name in COUNTED
                },
                **{name: tally.numbers[name] for name in NUMBERS},
                "durations": dict(sorted(tally.durations.items())),
            }
        for (day, stream, title), tally in self._problems.items():
            numbers = {name: tally.numbers[name] for name in PROBLEM_NUMBERS}
            yield {**_key(day, stream), "problem": title, **numbers}

    def _add(self, day: DayPlan) -> None:
        """Add a day of the sample's history to the report numbers expected of it.

        Its deliveries, failures and decisions count.
        """
        for count in day.counts:
            self._add_count(count)
        for poisoned in day.poisons:
            for tally in self._add_failure(poisoned, poisoned.failed_at):
                tally.numbers["poisoned"] += 1
        for step in day.steps:
            for poisoned in step.poisons:
                self._add_step(step, poisoned)

    def _add_count(self, count: ClientCounts) -> None:
        """Add a made-up consumer's counters to the expected numbers of its hour."""
        tally = self._hour(count.minute, count.stream)
        tally.numbers["delivered"] += count.handled + count.failed
        tally.numbers["handled"] += count.handled
        # A broker only counts deliveries, and does not know their results.
        if count.stream.source is DeliveredSource.SDK:
            tally.numbers["skipped"] += count.skipped
            tally.numbers["retried"] += count.retried
            tally.durations.update(dict(count.durations))

    def _add_failure(
        self, poisoned: Poisoned, at: datetime
    ) -> tuple[SummedNumbers, SummedNumbers]:
        """Count a made-up failure in its hour's and problem's expected numbers.

        Return both numbers.
        """
        hour, problem = self._of_hour_and_problem(poisoned, at)
        hour.numbers["failed"] += 1
        problem.numbers["failed"] += 1
        problem.numbers["retried"] += poisoned.fault.attempts - 1
        return hour, problem

    def _add_step(self, step: PlannedStep, poisoned: Poisoned) -> None:
        """Count a made-up decision about a failure in the expected numbers.

        Or count its outcome.
        """
        for tally in self._of_hour_and_problem(poisoned, step.at):
            tally.numbers[step.kind.value] += 1
        if step.kind is StepKind.RECURRED:
            self._add_failure(poisoned, step.at)

    def _of_hour_and_problem(
        self, poisoned: Poisoned, at: datetime
    ) -> tuple[SummedNumbers, SummedNumbers]:
        """Look up the expected numbers of a made-up failure's hour and problem."""
        problem = (at.date(), poisoned.stream, poisoned.fault.title)
        return (
            self._hour(at, poisoned.stream),
            self._problems.setdefault(problem, SummedNumbers()),
        )

    def _hour(self, at: datetime, stream: TrafficStream) -> SummedNumbers:
        return self._hours.setdefault((at.date(), at.hour, stream), SummedNumbers())


def _key(day: date, stream: TrafficStream) -> dict[str, object]:
    """Return day, topic and group as a dict: the start of an expected report line."""
    return {
        "day": day.isoformat(),
        "topic": stream.topic,
        "consumer_group": stream.consumer_group,
    }
