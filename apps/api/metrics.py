"""`/metrics`: gauges in the Prometheus text format, from queries with a time limit.

A part whose query exceeds its limit is left out of this answer, and `metrics_complete`
is 0: a missing number raises no alarm, a wrong one would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import ClassVar

from django.http import HttpResponse
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
# A carriage return in an old name would end the line for some parsers.
_INVISIBLE = {
    ord(c): f"\\\\x{ord(c):02x}" for c in map(chr, range(0xA0)) if not c.isprintable()
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

Labels = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One metric: a gauge, and its value for each set of labels."""

    name: str
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} gauge"
        for labels, value in self.samples:
            pairs = ",".join(f'{name}="{_escaped(labels[name])}"' for name in labels)
            yield f"{self.name}{{{pairs}}} {value}"


class Metrics(View):
    scopes: ClassVar = {"GET": Scope.METRICS_READ}
    schema = None

    def get(self, _: Request) -> HttpResponse:
        measured = families(self.principal, now=clock.now())
        return HttpResponse(text(measured), content_type=MEDIA_TYPE)


def text(families: Iterable[Family]) -> str:
    return "".join(f"{line}\n" for family in families for line in family.lines())


def families(principal: Principal, *, now: datetime) -> list[Family]:
    """Measure every family, over the topics that this principal may see."""
    measured, is_complete = list[Family](), True
    for part in (_poisons, _lanes, _operations):
        result = unless_slow(partial(part, principal, now), within_ms=TIMEOUT_MS)
        if isinstance(result, TooSlow):
            is_complete = False
        else:
            measured += result
    complete = Family(
        name="metrics_complete", help="1, or 0 where something took too long to count."
    )
    complete.samples.append(({}, float(is_complete)))
    return [*measured, complete]


def _poisons(principal: Principal, now: datetime) -> list[Family]:
    opened = Family(
        name="poison_open",
        help=f"Open poisons, counted up to {MOST_COUNTED}.",
    )
    oldest = Family(
        name="poison_oldest_seconds",
        help="Seconds since the last failure of the oldest open poison.",
    )
    topics = Topic.objects.matching(principal.topics).order_by("name")[:MOST_TOPICS]
    names = dict(topics.values_list("pk", "name"))
    for pk, backlog in backlogs(topics=list(names), most=MOST_COUNTED).items():
        labels, since = {"topic": _short(names[pk])}, backlog.oldest
        age = max(0.0, (now - since).total_seconds()) if since else 0.0
        opened.samples.append((labels, backlog.open))
        oldest.samples.append((labels, age))
    return [opened, oldest]


def _lanes(principal: Principal, now: datetime) -> list[Family]:
    lag = Family(
        name="lane_lag", help="Dead letters in the queue, where the broker counts them."
    )
    up = Family(
        name="lane_up",
        help="1 while a lane works or is paused, 0 when it, its broker or its queue"
        " is away.",
    )
    visible = Topic.objects.matching(principal.topics)
    lanes = Lane.objects.possible().filter(topic__in=visible).order_by("topic__name")
    for lane in lanes[:MOST_TOPICS]:
        name, is_heard = _short(lane.topic.name), lane.is_heard(now)
        is_up = is_heard and lane.state in UP_STATES
        up.samples.append(({"topic": name, "mode": lane.mode}, float(is_up)))
        # The last depth of a silent lane is out of date.
        if is_heard and lane.depth is not None:
            lag.samples.append(({"topic": name}, lane.depth))
    return [lag, up]


def _operations(principal: Principal, _: datetime) -> list[Family]:
    items = Family(
        name="operation_items", help="Messages of operations that are not over yet."
    )
    # Items belong to many topics, and only their sum is published.
    if principal.sees_every_topic:
        counts = Item.objects.filter(operation__state__in=UNFINISHED).counts()
        items.samples.extend(({"state": state}, n) for state, n in counts.items())
    return [items]


def _short(name: str) -> str:
    """Cut a name that is too long for a label; a digest keeps the cut names unique."""
    if len(name) <= LONGEST_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: LONGEST_LABEL - len(digest) - 1]}~{digest}"


def _escaped(value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return quoted.translate(_INVISIBLE)
