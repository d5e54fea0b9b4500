"""`/metrics`: gauges in the Prometheus text format, from queries with a time limit.

A part whose query exceeds its limit is left out of this answer, and `metrics_complete`
is 0: a missing number raises no alarm, a wrong one would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar

from django.http import HttpResponse
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from rest_framework.request import Request

from apps.api.views.base import View
from apps.brokers.models import Topic
from apps.capture.models import Lane, LaneState
from apps.core import clock
from apps.core.timeouts import TooSlow, unless_slow
from apps.poison.backlogs import backlogs
from apps.team.rights import Principal, Scope
from apps.triage.models import Item
from apps.triage.states import UNFINISHED

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_MS = 1_000
# A carriage return in an old name would end the line for some parsers. Line feeds are
# escaped in every label.
_INVISIBLE = {
    code: f"\\x{code:02x}"
    for code in range(0xA0)
    if code != ord("\n") and not chr(code).isprintable()
}
# Each topic is a series in the monitoring system's memory: only the first by name.
MOST_TOPICS = 1_000
# Open poisons are counted up to here: a larger number changes no decision.
MOST_COUNTED = 100_000
LONGEST_LABEL = 200
UP_STATES = (
    LaneState.RUNNING,
    LaneState.EXPECTED,
    LaneState.HOLDING,
    LaneState.PAUSED,
)


class Metrics(View):
    scopes: ClassVar = {"GET": Scope.METRICS_READ}
    schema = None

    def get(self, _: Request) -> HttpResponse:
        gauges = Gauges(principal=self.principal, now=clock.now())
        return HttpResponse(generate_latest(gauges), content_type=MEDIA_TYPE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauges:
    """The gauges of one answer, over the topics that this principal may see."""

    principal: Principal
    now: datetime

    def collect(self) -> Iterator[GaugeMetricFamily]:
        is_complete = True
        for part in (_poisons, _lanes, _operations):
            measure = partial(part, self.principal, self.now)
            result = unless_slow(measure, within_ms=TIMEOUT_MS)
            if isinstance(result, TooSlow):
                is_complete = False
            else:
                yield from result
        yield GaugeMetricFamily(
            "metrics_complete",
            "1, or 0 where something took too long to count.",
            value=float(is_complete),
        )


def _poisons(principal: Principal, now: datetime) -> list[GaugeMetricFamily]:
    opened = GaugeMetricFamily(
        "poison_open",
        f"Open poisons, counted up to {MOST_COUNTED}.",
        labels=["topic"],
    )
    oldest = GaugeMetricFamily(
        "poison_oldest_seconds",
        "Seconds since the last failure of the oldest open poison.",
        labels=["topic"],
    )
    topics = Topic.objects.matching(principal.topics).order_by("name")[:MOST_TOPICS]
    names = dict(topics.values_list("pk", "name"))
    for pk, backlog in backlogs(topics=list(names), most=MOST_COUNTED).items():
        topic, since = _label(names[pk]), backlog.oldest
        age = max(0.0, (now - since).total_seconds()) if since else 0.0
        opened.add_metric([topic], backlog.open)
        oldest.add_metric([topic], age)
    return [opened, oldest]


def _lanes(principal: Principal, now: datetime) -> list[GaugeMetricFamily]:
    lag = GaugeMetricFamily(
        "lane_lag",
        "Dead letters in the queue, where the broker counts them.",
        labels=["topic"],
    )
    up = GaugeMetricFamily(
        "lane_up",
        "1 while a lane works or is paused, 0 when it, its broker or its queue is"
        " away.",
        labels=["topic", "mode"],
    )
    visible = Topic.objects.matching(principal.topics)
    lanes = Lane.objects.possible().filter(topic__in=visible).order_by("topic__name")
    for lane in lanes[:MOST_TOPICS]:
        topic, is_heard = _label(lane.topic.name), lane.is_heard(now)
        is_up = is_heard and lane.state in UP_STATES
        up.add_metric([topic, lane.mode], float(is_up))
        # The last depth of a silent lane is out of date.
        if is_heard and lane.depth is not None:
            lag.add_metric([topic], lane.depth)
    return [lag, up]


def _operations(principal: Principal, _: datetime) -> list[GaugeMetricFamily]:
    items = GaugeMetricFamily(
        "operation_items",
        "Messages of operations that are not over yet.",
        labels=["state"],
    )
    # Items belong to many topics, and only their sum is published.
    if principal.sees_every_topic:
        counts = Item.objects.filter(operation__state__in=UNFINISHED).counts()
        for state, number in counts.items():
            items.add_metric([state], number)
    return [items]


def _label(name: str) -> str:
    """Cut a name that is too long for a label; a digest keeps the cut names unique."""
    if len(name) > LONGEST_LABEL:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: LONGEST_LABEL - len(digest) - 1]}~{digest}"
    return name.translate(_INVISIBLE)
