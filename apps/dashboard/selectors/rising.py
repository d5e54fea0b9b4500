"""What rose: the newest published day against the mean of the same weekday before."""

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
# Of fewer days nobody can say what is usual.
FEWEST = 2
MOST = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Riser:
    """`newest` and `usual` are failure rates of a topic, failures of a problem."""

    pk: int
    name: str
    detail: str
    newest: float
    usual: float

    @property
    def ratio(self) -> float | None:
        return self.newest / self.usual if self.usual else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rising:
    """Those with the most failures above what is usual come first."""

    day: date
    weeks: int
    topics: Sequence[Riser]
    problems: Sequence[Riser]


def rising(day: date, principal: Principal) -> Rising | None:
    """Compare this published day; None where too few of its weekday are published."""
    before = [day - week for week in WEEKS]
    published = list(Day.objects.filter(day__in=before).values_list("day", flat=True))
    if len(published) < FEWEST:
        return None
    return Rising(
        day=day,
        weeks=len(published),
        topics=_topics(day, published, principal),
        problems=_problems(day, published, principal),
    )


def of_topics(principal: Principal, field: str = "topic") -> Q:
    """Keep what is of the topics that this principal may see."""
    if principal.sees_every_topic:
        return Q()
    return Q(**{f"{field}__in": Topic.objects.matching(principal.topics)})


def _topics(day: date, usual_days: list[date], principal: Principal) -> list[Riser]:
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
        Riser(
            pk=row["topic"],
            name=row["topic__name"],
            detail="",
            newest=row["newest"],
            usual=row["usual"],
        )
        for row in risen.order_by("-above", "topic")[:MOST]
    ]


def _problems(day: date, usual_days: list[date], principal: Principal) -> list[Riser]:
    """Compare numbers of failures: a published day without a row is one without any."""
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
        Riser(
            pk=row["problem"],
            name=row["problem__title"],
            detail=row["problem__summary"],
            newest=row["newest"],
            usual=row["usual"],
        )
        for row in risen.order_by("-above", "problem")[:MOST]
    ]
