"""The data of the report pages, from the nightly runs; no number is live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from django.conf import settings
from django.db.models import Case, Q, Sum, Value, When

from apps.brokers.models import Topic
from apps.core.errors import Absent
from apps.dashboard.keyset_pagination import ListCursor, ListPage, page
from apps.dashboard.presentation.charts import Heat
from apps.dashboard.report_params import Period, ReportParams
from apps.dashboard.selectors.daily_failure_rates import (
    HourRow,
    Series,
    Total,
    by_hour,
    heat,
    series,
)
from apps.dashboard.selectors.rising_topics_and_problems import (
    Rising,
    of_topics,
    rising,
)
from apps.reports.models import Day, Rate, Run
from apps.reports.querysets import RateQuerySet
from apps.reports.services.planning import is_overdue
from apps.team.rights import Principal

MOST_TOPICS = 60
MOST_GROUPS = 20
ALL_GROUPS = When(consumer_group=None, then=Value("topic"))
# The columns of the CSV file, and the fields behind them.
COLUMNS = {
    "day": "day_id",
    "topic": "topic__name",
    "of": "of",
    "consumer_group": "consumer_group",
    "source": "source",
    "delivered": "delivered",
    "failed": "failed",
    "uncounted": "uncounted",
    "poisoned": "poisoned",
    "skipped": "skipped",
    "retried": "retried",
    "redriven": "redriven",
    "confirmed": "confirmed",
    "recurred": "recurred",
    "dropped": "dropped",
    "failure_rate": "failure_rate",
    "rate_low": "rate_low",
    "rate_high": "rate_high",
    "p50_ms": "p50_ms",
    "p95_ms": "p95_ms",
    "p99_ms": "p99_ms",
    "run": "day__run_id",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Freshness:
    """The newest published day, the last finished run, and an unfinished one."""

    newest: Day | None
    last: Run | None
    unfinished: Run | None
    now: datetime

    @property
    def is_stale(self) -> bool:
        """Tell whether a newer nightly report is overdue."""
        hour = settings.POISONWEB_REPORT_HOUR
        return self.newest is not None and is_overdue(
            self.newest.day, hour=hour, now=self.now
        )

    @property
    def failed(self) -> Run | None:
        """Return the last finished run of the nightly report if it failed."""
        return self.last if self.last and self.last.trouble else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportPage:
    """A report on one or all topics; `gaps` counts days without a published report."""

    freshness: Freshness
    names: Sequence[str]
    total: Total
    series: Sequence[Series]
    gaps: int

    @property
    def left_out(self) -> int:
        """Count the topics with failure rates that the report's charts leave out."""
        return len(self.names) - len(self.series)

    @property
    def has_sample(self) -> bool:
        return any(each.is_sample for each in self.series)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllTopicsReport(ReportPage):
    """A report on all topics, most failures first, up to MOST_TOPICS."""

    rising: Rising | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicReport(ReportPage):
    groups: Sequence[Series]
    groups_in_all: int
    hours: Sequence[HourRow]
    heat: Heat

    @property
    def whole(self) -> Series:
        """Return the failure rates of all consumer groups of the topic together."""
        return self.series[0]


def find(
    params: ReportParams, principal: Principal, *, now: datetime
) -> AllTopicsReport | TopicReport:
    """Report failure rates of the chosen topic, or of all visible topics."""
    if params.topic:
        return _one_topic(params, principal, now=now)
    return _all_topics(params, principal, now=now)


def freshness(*, now: datetime) -> Freshness:
    """Load the nightly report's newest day, last finished run and unfinished run."""
    ended = Run.objects.exclude(finished_at=None)
    return Freshness(
        newest=Day.objects.select_related("run").order_by("-day").first(),
        last=ended.order_by("-finished_at", "-id").first(),
        unfinished=Run.objects.unfinished().order_by("id").first(),
        now=now,
    )


def runs(cursor: ListCursor | None) -> ListPage[Run]:
    """Return a page of nightly report runs, the newest first."""
    return page(Run.objects.all(), field="asked_at", cursor=cursor)


def csv_rows(
    params: ReportParams, principal: Principal
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the failure rates' CSV file, in a fixed order."""
    rates = _visible_rates(params.period, principal).whole_days()
    if params.topic:
        rates = rates.on(params.topic)
    ordered = rates.order_by("day", "topic__name", "consumer_group")
    # An empty consumer_group may be a nameless group, or all of them: see `of`.
    labelled = ordered.annotate(of=Case(ALL_GROUPS, default=Value("consumer_group")))
    return labelled.values_list(*COLUMNS.values()).iterator()


def _all_topics(
    params: ReportParams, principal: Principal, *, now: datetime
) -> AllTopicsReport:
    """Report failure rates of the visible topics with most failures."""
    period, published = params.period, _published_days(params.period)
    rates = _visible_rates(period, principal).whole_days().of_all_groups()
    totals = _totals(rates)
    topic_ids = list(totals)[:MOST_TOPICS]
    topics = Topic.objects.select_related("broker", "outbox__broker").in_bulk(topic_ids)
    by_topic = _by_topic(rates.filter(topic__in=topic_ids))
    return AllTopicsReport(
        freshness=freshness(now=now),
        names=sorted(name for name, _ in totals.values()),
        total=_sum(total for _, total in totals.values()),
        series=[
            series(topics[pk], by_topic[pk], period=period, published=published)
            for pk in topic_ids
        ],
        gaps=period.length - len(published),
        rising=rising(max(published), principal) if published else None,
    )


def _one_topic(
    params: ReportParams, principal: Principal, *, now: datetime
) -> TopicReport:
    """Report failure rates of a topic; raises Absent if it is not visible."""
    topics = Topic.objects.select_related("broker", "outbox__broker")
    topic = topics.filter(name=params.topic).first()
    if topic is None or not principal.sees(topic.name):
        raise Absent("There is no such topic here.")
    period, published = params.period, _published_days(params.period)
    rates = _visible_rates(period, principal)
    names = {topic.name, *(name for name, _ in _totals(rates.whole_days()).values())}
    here = rates.filter(topic=topic)
    groups = _groups(here)
    by_group = _by_group(here.whole_days(), groups[:MOST_GROUPS])
    whole = series(topic, by_group[None], period=period, published=published)
    hours = by_hour(whole, here.by_hour().of_all_groups())
    return TopicReport(
        freshness=freshness(now=now),
        names=sorted(names),
        total=whole.total,
        series=[whole],
        gaps=period.length - len(published),
        groups=[
            series(topic, by_group[g], period=period, published=published, group=g)
            for g in groups[:MOST_GROUPS]
        ],
        groups_in_all=len(groups),
        hours=hours,
        heat=heat(whole, hours),
    )


def _published_days(period: Period) -> set[date]:
    """Return the days of a period that have a report."""
    days = Day.objects.filter(day__gte=period.first, day__lte=period.last)
    return set(days.values_list("day", flat=True))


def _visible_rates(period: Period, principal: Principal) -> RateQuerySet:
    """Return a period's failure rates of the topics this principal sees."""
    within = Rate.objects.between(period.first, period.last)
    return within.filter(of_topics(principal))


def _totals(rates: RateQuerySet) -> dict[int, tuple[str, Total]]:
    """Map each topic's id to its name and totals, most failures first.

    The totals are of deliveries, failures and uncounted failures.
    """
    summed = rates.order_by().values_list("topic", "topic__name")
    columns = summed.annotate(
        Sum("delivered"), total=Sum("failed"), un=Sum("uncounted")
    )
    return {
        topic: (name, Total(delivered=delivered, failed=failed, uncounted=uncounted))
        for topic, name, delivered, failed, uncounted in columns.order_by(
            "-total", "topic__name"
        )
    }


def _sum(totals: Iterable[Total]) -> Total:
    """Add up totals of deliveries, failures and uncounted failures."""
    all_totals = list(totals)
    return Total(
        delivered=sum(total.delivered or 0 for total in all_totals) or None,
        failed=sum(total.failed for total in all_totals),
        uncounted=sum(total.uncounted for total in all_totals),
    )


def _groups(here: RateQuerySet) -> list[str]:
    """List a topic's consumer groups for its report, most failures first."""
    summed = here.whole_days().values_list("consumer_group")
    ordered = summed.annotate(total=Sum("failed")).order_by("-total", "consumer_group")
    return [group for group, _ in ordered if group is not None]


def _by_topic(rates: RateQuerySet) -> dict[int, list[Rate]]:
    """Group failure rates by the id of their topic."""
    by_topic = defaultdict[int, list[Rate]](list)
    for rate in rates:
        by_topic[rate.topic_id].append(rate)
    return by_topic


def _by_group(here: RateQuerySet, groups: list[str]) -> dict[str | None, list[Rate]]:
    """Group failure rates by consumer group; None is all groups together."""
    rates = defaultdict[str | None, list[Rate]](list)
    for rate in here.filter(Q(consumer_group=None) | Q(consumer_group__in=groups)):
        rates[rate.consumer_group].append(rate)
    return rates
