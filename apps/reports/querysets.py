"""Querysets of runs and of the rates that they published."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Self

from django.db import models

from apps.brokers import topic_names_to_id_filters
from apps.reports.report_run_states import UNFINISHED, RunState, before

if TYPE_CHECKING:
    from apps.reports.models import EndpointDay, ProblemDay, Rate, Run


class RunQuerySet(models.QuerySet["Run"]):
    def unfinished(self) -> Self:
        """Keep report runs that wait or are at work."""
        return self.filter(state__in=UNFINISHED)

    def failed(self) -> Self:
        return self.filter(state=RunState.FAILED)

    def covering(self, day: date) -> Self:
        """Keep report runs whose days include this one."""
        return self.filter(first_day__lte=day, last_day__gte=day)

    def overlapping(self, first: date, last: date) -> Self:
        """Keep report runs that have a day between these, both included."""
        return self.filter(first_day__lte=last, last_day__gte=first)

    def recent_first(self) -> Self:
        """Order report runs by id, the newest first."""
        return self.order_by("-id")

    def transition(self, *, to: RunState, **values: Any) -> int:
        """Change the state of report runs that may reach it; return how many did."""
        return self.filter(state__in=before(to)).update(state=to.value, **values)


class RateQuerySet(models.QuerySet["Rate"]):
    def between(self, first: date, last: date) -> Self:
        """Keep failure rates of the days between these, both included."""
        return self.filter(day_id__gte=first, day_id__lte=last)

    def whole_days(self) -> Self:
        """Keep failure rates of a whole day, not those of its hours."""
        return self.filter(hour=None)

    def by_hour(self) -> Self:
        """Keep failure rates of single hours, not those of whole days."""
        return self.filter(hour__isnull=False)

    def of_all_groups(self) -> Self:
        """Keep failure rates of all consumer groups together."""
        return self.filter(consumer_group=None)

    def on(self, topic: str) -> Self:
        """Keep failure rates of the topic with exactly this name."""
        return self.filter(topic_names_to_id_filters.by_name(topic))


class ProblemDayQuerySet(models.QuerySet["ProblemDay"]):
    def between(self, first: date, last: date) -> Self:
        """Keep problems' daily rows of the days between these, both included."""
        return self.filter(day_id__gte=first, day_id__lte=last)


class EndpointDayQuerySet(models.QuerySet["EndpointDay"]):
    def between(self, first: date, last: date) -> Self:
        """Keep endpoints' daily rows of the days between these, both included."""
        return self.filter(day_id__gte=first, day_id__lte=last)
