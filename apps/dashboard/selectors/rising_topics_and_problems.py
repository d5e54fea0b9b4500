"""Compare the newest published day with the mean of the same weekday before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from django.db.models import Avg, Count, F, Max, Q, Sum
from django.db.models.functions import Coalesce

from apps.brokers.models import Topic
from apps.reports.models import Day, ProblemDay, Rate
from apps.team.rights import Principal

WEEKS = tuple(timedelta(weeks=number) for number in range(1, 5))
# With fewer days than this there is no usual value.
FEWEST = 2
MOST = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class RisingRow:
    """A topic with its failure rates, or a problem with its numbers of failures."""

    pk: int
    name: str
    detail: str
    newest: float
    usual: float

    @property
    def ratio(self) -> float | None:
        """Return newest / usual failure rate of a topic, or failures of a problem.

        None where the usual value is 0.
        """
        return self.newest / self.usual if self.usual else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rising:
    """Topics and problems above their usual value, the largest increase first."""

    day: date
    weeks: int
    topics: Sequence[RisingRow]
    problems: Sequence[RisingRow]


def rising(day: date, principal: Principal) -> Rising | None:
    """Find the topics and problems that failed more than usual on a published day.

    It is compared with the same weekday in earlier weeks; None if too few of these were
    published.
    """
    before = [day - week for week in WEEKS]
    published = list(Day.objects.filter(day__in=before).values_list("day", flat=True))
    if len(published) < FEWEST:
        return None
    return Rising(
        day=day,
        weeks=len(published),
        topics=_rising_topics(day, published, principal),
        problems=_rising_problems(day, published, principal),
    )


def of_topics(principal: Principal, field: str = "topic") -> Q:
    """Build a condition for the topics that this principal may see."""
    if principal.sees_every_topic:
        return Q()
    return Q(**{f"{field}__in": Topic.objects.matching(principal.topics)})


def _rising_topics(
    day: date, usual_days: list[date], principal: Principal
) -> list[RisingRow]:
    """List the topics whose failure rate is above its usual mean."""
    rates = Rate.objects.whole_days().of_all_groups().filter(of_topics(principal))
    compared = rates.filter(day__in=[day, *usual_days]).values("topic", "topic__name")
    now, usual = Q(day=day), Q(day__in=usual_days)
    risen = compared.annotate(
        newest=Max("failure_rate", filter=now),
        usual=Avg("failure_rate", filter=usual),
        weeks=Count("failure_rate", filter=usual),
        above=(F("newest") - F("usual")) * Max("delivered", filter=now),
    ).filter(weeks__gte=FEWEST, newest__gt=F("usual"))
    return [
        RisingRow(
            pk=row["topic"],
            name=row["topic__name"],
            detail="",
            newest=row["newest"],
            usual=row["usual"],
        )
        for row in risen.order_by("-above", "topic")[:MOST]
    ]


def _rising_problems(
    day: date, usual_days: list[date], principal: Principal
) -> list[RisingRow]:
    """List problems with more failures than usual on a published day."""
    rows = ProblemDay.objects.filter(of_topics(principal, "problem__topic"))
    compared = rows.filter(day__in=[day, *usual_days]).values(
        "problem", "problem__title", "problem__summary"
    )
    usual = Sum("failed", filter=Q(day__in=usual_days))
    risen = compared.annotate(
        newest=Max("failed", filter=Q(day=day)),
        usual=Coalesce(usual, 0) * 1.0 / len(usual_days),
        above=F("newest") - F("usual"),
    ).filter(newest__gt=F("usual"))
    return [
        RisingRow(
            pk=row["problem"],
            name=row["problem__title"],
            detail=row["problem__summary"],
            newest=row["newest"],
            usual=row["usual"],
        )
        for row in risen.order_by("-above", "problem")[:MOST]
    ]
