"""What kind of day it was, and how busy the hours of a day are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

DAYS = 28
DAY = timedelta(days=1)
TUESDAY, WEDNESDAY, SATURDAY = 1, 2, 5

# How many of a hundred messages come in each hour.
HOURS = (1, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 7, 6, 7, 7, 7, 6, 5, 5, 4, 3, 2, 2, 1)
WEEKEND, QUIET_WEEKEND = 0.4, 0.06
RELEASED, ROLLED_BACK, CLEANED_UP = time(10), time(13, 20), time(17)
MAINTAINED_FROM, MAINTAINED_UNTIL = time(3), time(5)
# After this, on the last day, nothing new comes: what failed until then is decided.
LAST_HOUR = time(23)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weeks:
    """The 28 UTC days from `first` on; each has its weekday, and some have a story."""

    first: date

    @property
    def last(self) -> date:
        return self.first + (DAYS - 1) * DAY

    @property
    def bad_day(self) -> date:
        """The Wednesday on which billing 1.9 was released, and rolled back."""
        return self._next(WEDNESDAY, after=9)

    @property
    def quiet_weekend(self) -> tuple[date, date]:
        saturday = self._next(SATURDAY, after=14)
        return saturday, saturday + DAY

    @property
    def maintenance(self) -> date:
        """The Tuesday with hours in which no order was delivered."""
        return self._next(TUESDAY, after=17)

    def __iter__(self) -> Iterator[date]:
        return (self.first + number * DAY for number in range(DAYS))

    def number_of(self, day: date) -> int:
        return (day - self.first).days

    def is_released(self, at: datetime) -> bool:
        """Tell whether billing 1.9 runs."""
        return at.date() == self.bad_day and RELEASED <= at.time() < ROLLED_BACK

    def is_rolled_back(self, at: datetime) -> bool:
        """Tell whether what 1.9 could not handle is skipped, and not yet decided."""
        return at.date() == self.bad_day and ROLLED_BACK <= at.time() < CLEANED_UP

    def share(self, at: datetime) -> float:
        """Tell which part of a working day's messages comes in the hour from `at`."""
        if at.date() == self.last and at.time() >= LAST_HOUR:
            return 0.0
        return HOURS[at.hour] / sum(HOURS) * self._level(at.date())

    def is_maintained(self, at: datetime) -> bool:
        during = MAINTAINED_FROM <= at.time() < MAINTAINED_UNTIL
        return at.date() == self.maintenance and during

    def decided_on(self, day: date) -> date:
        """Tell when somebody looks at what failed that day: on the next working day."""
        following = day + DAY
        while following.weekday() >= SATURDAY:
            following += DAY
        return min(following, self.last)

    def _next(self, weekday: int, *, after: int) -> date:
        start = self.first + after * DAY
        return start + (weekday - start.weekday()) % 7 * DAY

    def _level(self, day: date) -> float:
        if day in self.quiet_weekend:
            return QUIET_WEEKEND
        return WEEKEND if day.weekday() >= SATURDAY else 1.0


def at(day: date, hour: int, minute: int = 0) -> datetime:
    return datetime.combine(day, time(hour, minute), UTC)
