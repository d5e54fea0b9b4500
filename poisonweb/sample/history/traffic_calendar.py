"""The days of the history, and the share of messages in every hour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

DAYS = 28
DAY = timedelta(days=1)
TUESDAY, WEDNESDAY, SATURDAY = 1, 2, 5

# Messages per hour, of a hundred a day.
HOURS = (1, 1, 1, 1, 1, 2, 3, 5, 7, 8, 8, 7, 6, 7, 7, 7, 6, 5, 5, 4, 3, 2, 2, 1)
WEEKEND, QUIET_WEEKEND = 0.4, 0.06
RELEASED, ROLLED_BACK, CLEANED_UP = time(10), time(13, 20), time(17)
MAINTAINED_FROM, MAINTAINED_UNTIL = time(3), time(5)
# On the last day no message comes after this time, so that all failures get decided.
LAST_HOUR = time(23)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weeks:
    """The 28 UTC days from `first` on; some of them are special."""

    first: date

    @property
    def last(self) -> date:
        return self.first + (DAYS - 1) * DAY

    @property
    def bad_day(self) -> date:
        """Return the Wednesday of the made-up faulty release billing 1.9."""
        return self._next(WEDNESDAY, after=9)

    @property
    def quiet_weekend(self) -> tuple[date, date]:
        """Return the made-up history's weekend with hardly a message, in week 3."""
        saturday = self._next(SATURDAY, after=14)
        return saturday, saturday + DAY

    @property
    def maintenance(self) -> date:
        """Return the made-up history's Tuesday with hours without any order."""
        return self._next(TUESDAY, after=17)

    def __iter__(self) -> Iterator[date]:
        return (self.first + number * DAY for number in range(DAYS))

    def number_of(self, day: date) -> int:
        """Return how many days a day is after the made-up history's first day."""
        return (day - self.first).days

    def is_released(self, at: datetime) -> bool:
        """Check whether the made-up faulty release billing 1.9 runs at this time."""
        return at.date() == self.bad_day and RELEASED <= at.time() < ROLLED_BACK

    def is_rolled_back(self, at: datetime) -> bool:
        """Check whether messages that failed in the made-up release are skipped.

        This is the case from its rollback until their cleanup.
        """
        return at.date() == self.bad_day and ROLLED_BACK <= at.time() < CLEANED_UP

    def share(self, at: datetime) -> float:
        """Return the share of a made-up working day's messages in the hour at `at`."""
        if at.date() == self.last and at.time() >= LAST_HOUR:
            return 0.0
        return HOURS[at.hour] / sum(HOURS) * self._level(at.date())

    def is_maintained(self, at: datetime) -> bool:
        """Check if a time is in the made-up maintenance, without orders."""
        during = MAINTAINED_FROM <= at.time() < MAINTAINED_UNTIL
        return at.date() == self.maintenance and during

    def decided_on(self, day: date) -> date:
        """Return the day on which a day's made-up failures are decided.

        It is the next working day, but never later than the history's last day.
        """
        following = day + DAY
        while following.weekday() >= SATURDAY:
            following += DAY
        return min(following, self.last)

    def _next(self, weekday: int, *, after: int) -> date:
        """Return the made-up history's first date with this weekday.

        It is at least `after` days after the history's start.
        """
        start = self.first + after * DAY
        return start + (weekday - start.weekday()) % 7 * DAY

    def _level(self, day: date) -> float:
        """Return how busy the sample's day is: 1 on working days, less on weekends."""
        if day in self.quiet_weekend:
            return QUIET_WEEKEND
        return WEEKEND if day.weekday() >= SATURDAY else 1.0


def at(day: date, hour: int, minute: int = 0) -> datetime:
    """Return a day's hour and minute as a datetime in UTC."""
    return datetime.combine(day, time(hour, minute), UTC)
