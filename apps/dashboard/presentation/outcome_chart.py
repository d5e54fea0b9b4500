"""The outcomes of an operation over time, as rows of bars and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.poison.states import GIVEN_BACK
from apps.triage.outcomes_over_time import OUTCOMES, OutcomeBucket, OutcomesOverTime

ALL = "all"
# Bars in red; the pill says what they are.
BAD = ("recurred", "refused")
UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60))


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeRow:
    """The numbers of one outcome, by time; `label` is that of its pill."""

    label: str
    numbers: list[int]
    summary: str
    is_bad: bool

    @property
    def total(self) -> int:
        return sum(self.numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeChart:
    """The rows of a chart: all messages first, then each outcome that any of them had.

    All rows have the same scale, which ends at `peak`.
    """

    rows: list[OutcomeRow]
    begins: list[datetime]
    ends_at: datetime
    width: str
    is_by_window: bool

    @property
    def peak(self) -> int:
        return max(self.rows[0].numbers)

    @property
    def each(self) -> str:
        """Return the width of the chart's bars: "1 minute", "5 minutes"."""
        return self.width if self.width[0].isdigit() else f"1 {self.width}"

    @property
    def is_one_bar(self) -> bool:
        """Tell whether each row of an operation's outcome chart has only one bar."""
        return len(self.begins) == 1

    @property
    def table(self) -> list[tuple[datetime, list[int]]]:
        """Return the start and outcomes of each bar that has messages."""
        columns = zip(*(row.numbers for row in self.rows), strict=True)
        lines = zip(self.begins, map(list, columns), strict=True)
        return [(begin, numbers) for begin, numbers in lines if numbers[0]]


def outcome_chart(outcomes: OutcomesOverTime, *, gives_back: bool) -> OutcomeChart:
    """Arrange an operation's outcomes over time as a chart: a row of bars for each.

    The first row is of all messages; an outcome that no message had gets no row. If the
    operation gives messages back, outcomes have the labels of a give back, and no row
    is marked as bad.
    """
    width, buckets = in_words(outcomes.width), outcomes.buckets
    names = [ALL, *OUTCOMES, "silent"]
    numbers = {
        name: [_number_in_bar(bucket, name) for bucket in buckets] for name in names
    }
    labels = GIVEN_BACK if gives_back else {}
    return OutcomeChart(
        rows=[
            OutcomeRow(
                label=labels.get(name, name),
                numbers=numbers[name],
                summary=_summary(numbers[name], buckets, width),
                is_bad=name in BAD and not gives_back,
            )
            for name in names
            if name == ALL or any(numbers[name])
        ],
        begins=[bucket.begins_at for bucket in buckets],
        ends_at=outcomes.ends_at,
        width=width,
        is_by_window=outcomes.is_by_window,
    )


def in_words(width: timedelta) -> str:
    """Describe the width of a chart's bar: minute, 5 minutes, hour."""
    seconds = round(width.total_seconds())
    noun, unit = next(each for each in UNITS if seconds % each[1] == 0)
    number = seconds // unit
    return noun if number == 1 else f"{number} {noun}s"


def _number_in_bar(bucket: OutcomeBucket, name: str) -> int:
    """Return the number of an outcome in one bar of an operation's chart."""
    if name == ALL:
        return bucket.total
    return bucket.silent if name == "silent" else bucket.counts[name]


def _summary(numbers: list[int], buckets: list[OutcomeBucket], width: str) -> str:
    """Say in a sentence what an operation's chart shows of one outcome."""
    peak = max(numbers)
    begin = buckets[numbers.index(peak)].begins_at
    return (
        f"{sum(numbers):,} in all; most, {peak:,}, in the {width} "
        f"from {begin:%Y-%m-%d %H:%M} UTC"
    )
