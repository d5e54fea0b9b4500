"""`/metrics`: gauges in the Prometheus text format, from queries with a time limit.

A part whose query exceeds its limit is left out of this answer, and `metrics_complete`
is 0: a missing number raises no alarm, a wrong one would.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar

from django.db.models import Sum
from django.http import HttpResponse
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from rest_framework.request import Request

from apps.api.views.base import View
from apps.brokers.models import Topic
from apps.capture.models import Lane, LaneState
from apps.core import clock
from apps.core.statement_timeouts import TooSlow, unless_slow
from apps.outbox.models import Outbox, OutboxError
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeper_state_for_pages import SILENT, state_of
from apps.poison import poison_counts_by_state
from apps.poison.models import PoisonCountCheck
from apps.poison.states import DisplayState
from apps.redelivery import endpoint_backlog_queries as deliveries
from apps.redelivery.models import Endpoint
from apps.redelivery.services.circuit_breaker import is_open
from apps.team.rights import Principal, Scope
from apps.triage.models import Operation
from apps.triage.operation_states import STANDINGS
from apps.triage.progress import all_counts

Part = Callable[[Principal, datetime], Sequence[Metric]]

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
LONGEST_LABEL = 200
SENDING = (SweeperState.SWEEPING, SweeperState.SLOWED)
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

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; `metrics_complete` is 0 if one took too long to count."""
        is_complete = True
        # Alerts depend on it, and it is quick: no limit may ever leave it out.
        yield from _open(self.principal)
        parts = deque[Part]([_oldest, _lanes, _operations, _endpoints, _outboxes])
        while parts:
            part = parts.popleft()
            measure = partial(part, self.principal, self.now)
            result = unless_slow(measure, within_ms=TIMEOUT_MS)
            if isinstance(result, TooSlow):
                is_complete = False
                continue
            yield from result
            if part is _endpoints and any(each.samples for each in result):
                parts += (_oldest_deliveries, _calls)
        yield GaugeMetricFamily(
            "metrics_complete",
            "1, or 0 where something took too long to count.",
            value=float(is_complete),
        )


def _open(principal: Principal) -> list[GaugeMetricFamily]:
    """Count open poisons by topic, and the counts that the last check had to mend."""
    opened = GaugeMetricFamily("poison_open", "Open poisons.", labels=["topic"])
    names = _topics(principal)
    for pk, counts in poison_counts_by_state.by_topic(list(names)).items():
        opened.add_metric([_label(names[pk])], counts.states[DisplayState.OPEN])
    check = PoisonCountCheck.objects.first()
    wrong = GaugeMetricFamily(
        "poison_counts_wrong",
        "Counts that the last nightly check found wrong, and mended.",
        value=check.wrong if check else 0,
    )
    return [opened, wrong]


def _topics(principal: Principal) -> dict[int, str]:
    """Map ids to names of topics in `/metrics`: those that a principal sees.

    These are the first of them by name, up to a limit.
    """
    topics = Topic.objects.matching(principal.topics).order_by("name")[:MOST_TOPICS]
    return dict(topics.values_list("pk", "name"))


def _oldest(principal: Principal, now: datetime) -> list[GaugeMetricFamily]:
    """Measure the age of each topic's oldest open poison."""
    oldest = GaugeMetricFamily(
        "poison_oldest_seconds",
        "Seconds since the last failure of the oldest open poison.",
        labels=["topic"],
    )
    names = _topics(principal)
    moments = poison_counts_by_state.oldest_open(list(names))
    for pk, name in names.items():
        age = max(0.0, (now - moments.get(pk, now)).total_seconds())
        oldest.add_metric([_label(name)], age)
    return [oldest]


def _lanes(principal: Principal, now: datetime) -> list[GaugeMetricFamily]:
    """Measure lanes: dead letters in the queue, and whether the lane works."""
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
    """Count unfinished operations' items for `/metrics`, if all topics are visible."""
    items = GaugeMetricFamily(
        "operation_items",
        "Messages of operations that are not over yet.",
        labels=["state"],
    )
    # Items belong to many topics, and only their sum is published.
    if principal.sees_every_topic:
        counts = all_counts(Operation.objects.unfinished())
        for state in STANDINGS:
            items.add_metric([state], sum(each[state] for each in counts.values()))
    return [items]


def _endpoints(principal: Principal, now: datetime) -> list[Metric]:
    """Measure each endpoint: waiting deliveries, next due time, breaker and sender."""
    waiting = _gauge("endpoint_waiting", "Deliveries that wait for their next try.")
    next_due = _gauge(
        "endpoint_next_due_seconds",
        "Seconds until the next delivery is due, below 0 where it is late.",
    )
    breaker = _gauge(
        "endpoint_breaker_open", "1 while calls are not made, except for probes."
    )
    up = _gauge("endpoint_sender_up", "1 while a sender owns the endpoint and lives.")
    endpoints = _visible_endpoints(principal)
    backlogs_by_id = deliveries.waiting([each.pk for each in endpoints])
    for each in endpoints:
        label = [_label(each.name)]
        backlog = backlogs_by_id.get(each.pk)
        waiting.add_metric(label, backlog.waiting if backlog else 0)
        if backlog:
            next_due.add_metric(label, (backlog.next_due - now).total_seconds())
        breaker.add_metric(label, float(is_open(each.activity)))
        up.add_metric(label, float(each.activity.is_heard(now)))
    return [waiting, next_due, breaker, up]


def _outboxes(principal: Principal, now: datetime) -> list[Metric]:
    """Measure each outbox: waiting and quarantined rows, breaker, sweeper and errors.

    Reads what its sweeper noted last.
    """
    gauge = partial(_gauge, label="outbox")
    sweeping = gauge(
        "outbox_sweeping", "1 while a sweeper sends what waits, slowed or not."
    )
    breaker = gauge("outbox_breaker_open", "1 while equal errors make it pause.")
    up = gauge("outbox_sweeper_up", "0 while no sweeper notes anything.")
    flood = gauge("outbox_flood_rows", "Rows of one writer quarantined in 10 minutes.")
    errors = CounterMetricFamily(
        "outbox_errors", "Errors of the sweeper.", labels=["outbox", "step"]
    )
    messages = CounterMetricFamily("outbox_sent", "Messages sent.", labels=["outbox"])
    outboxes = _visible_outboxes(principal)
    counts = _error_counts(outboxes)
    for each in outboxes:
        label, activity = [_label(each.name)], each.activity
        state = state_of(each, now=now)
        sweeping.add_metric(label, float(state in SENDING))
        breaker.add_metric(label, float(state == SweeperState.BROKEN))
        up.add_metric(label, float(state != SILENT))
        flood.add_metric(label, activity.flood_rows)
        messages.add_metric(label, activity.sent_count)
        for step, count in counts.get(each.pk, {}).items():
            errors.add_metric([*label, step], count)
    gauges = [sweeping, breaker, up, flood]
    return [*_outbox_rows(outboxes, now), *gauges, errors, messages]


def _outbox_rows(outboxes: list[Outbox], now: datetime) -> list[Metric]:
    """Measure what each outbox's rows were counted to be, and how old the counts are.

    Before the first count there are none, and their age is that of the outbox.
    """
    gauge = partial(_gauge, label="outbox")
    waiting = gauge("outbox_waiting", "Rows that wait to be sent.")
    oldest = gauge(
        "outbox_oldest_seconds", "Seconds since the oldest row that waits was written."
    )
    quarantined = gauge(
        "outbox_quarantined", "Quarantined rows that wait for a decision."
    )
    age_of_counts = gauge(
        "outbox_count_age_seconds", "Seconds since the rows were counted."
    )
    for each in outboxes:
        label, activity = [_label(each.name)], each.activity
        counted_at = activity.counted_at or each.created_at
        age_of_counts.add_metric(label, max(0.0, (now - counted_at).total_seconds()))
        if activity.counted_at is None:
            continue
        waiting.add_metric(label, activity.waiting)
        age = (now - (activity.oldest_at or now)).total_seconds()
        oldest.add_metric(label, max(0.0, age))
        quarantined.add_metric(label, activity.quarantined)
    return [waiting, oldest, quarantined, age_of_counts]


def _visible_outboxes(principal: Principal) -> list[Outbox]:
    """List the outboxes that a principal sees, up to a limit of metrics, by name."""
    visible = Outbox.objects.matching(principal.topics).select_related("activity")
    return list(visible.order_by("name")[:MOST_TOPICS])


def _error_counts(outboxes: list[Outbox]) -> dict[int, dict[str, int]]:
    """Sum the errors of each outbox's sweeper by step, for `/metrics`."""
    counts: dict[int, dict[str, int]] = {}
    errors = OutboxError.objects.filter(outbox__in=outboxes)
    sums = errors.values("outbox", "step").annotate(total=Sum("count")).order_by()
    for row in sums:
        counts.setdefault(row["outbox"], {})[row["step"]] = row["total"]
    return counts


def _oldest_deliveries(principal: Principal, now: datetime) -> list[Metric]:
    """Measure the age of the oldest delivery that waits at each endpoint."""
    oldest = _gauge(
        "endpoint_oldest_seconds", "Seconds since the oldest that waits was accepted."
    )
    endpoints = _visible_endpoints(principal)
    moments = deliveries.oldest_waiting([each.pk for each in endpoints])
    for each in endpoints:
        age = (now - moments.get(each.pk, now)).total_seconds()
        oldest.add_metric([_label(each.name)], max(0.0, age))
    return [oldest]


def _calls(principal: Principal, now: datetime) -> list[Metric]:
    """Count today's calls to endpoints: a counter that restarts at midnight.

    One over all that is kept would fall whenever old counts are deleted.
    """
    calls = CounterMetricFamily(
        "endpoint_calls",
        "Calls since midnight UTC; given_up: deliveries in triage, dropped or"
        " forwarded.",
        labels=["endpoint", "end"],
    )
    endpoints = _visible_endpoints(principal)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    sums = deliveries.ends_since([each.pk for each in endpoints], since=midnight)
    for each in endpoints:
        for end in deliveries.ENDS:
            number = sums.get(each.pk, {}).get(end, 0)
            calls.add_metric([_label(each.name), end], number)
    return [calls]


def _gauge(name: str, help_text: str, *, label: str = "endpoint") -> GaugeMetricFamily:
    """Make a metric's gauge with a series for each endpoint, outbox or topic."""
    return GaugeMetricFamily(name, help_text, labels=[label])


def _visible_endpoints(principal: Principal) -> list[Endpoint]:
    """List the endpoints that a principal sees, up to a limit of metrics, by name."""
    visible = Endpoint.objects.matching(principal.topics).select_related("activity")
    return list(visible.order_by("name")[:MOST_TOPICS])


def _label(name: str) -> str:
    """Cut a name too long for a metric's label; a digest keeps it unique."""
    if len(name) > LONGEST_LABEL:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: LONGEST_LABEL - len(digest) - 1]}~{digest}"
    return name.translate(_INVISIBLE)
