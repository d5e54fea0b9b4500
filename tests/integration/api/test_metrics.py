"""/metrics: its families, its scope, and the alerting rules that use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.api import metrics
from apps.brokers.models import Topic
from apps.capture.models import Lane
from apps.core import clock
from apps.poison import poison_counts_by_state
from apps.poison.models import Poison
from apps.poison.query_language import Query
from apps.redelivery.models import CallCount, EndpointActivity
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Principal, Scope
from apps.triage import operation_enqueueing
from apps.triage.operation_states import STANDINGS, Verb
from apps.triage.services import previews
from apps.triage.services.selection_requests import SelectionRequest
from tests.failure_report_builders import capture, drop, failure
from tests.in_memory_queue_broker import Queues
from tests.integration.api.schema_checking_client import (
    Caller,
    anonymous,
    person,
    program,
)
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    DOWN,
    endpoint,
    request,
)

pytestmark = pytest.mark.django_db(transaction=True)

DOCS = Path(__file__).resolve().parents[3] / "docs"
RULES = [
    rule
    for file in sorted((DOCS / "alerts").glob("*.yaml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
LINE = re.compile(r'(\w+)(?:\{((?:\w+="(?:\\.|[^"\\\n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
HOSTILE = 'a"} 1\nb\\{x="y"} \u202e ' + "long " * 100

# It takes longer than any limit that it is given.
SLOW_IF_LIMITED = """
SELECT set_config('statement_timeout', '1', true)
WHERE current_setting('statement_timeout') <> '0';
SELECT pg_sleep(5), 0
"""

Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def reader() -> Caller:
    return program(Scope.METRICS_READ)


def scrape(caller: Caller) -> Samples:
    """Get the metrics, and parse them as strictly as Prometheus does."""
    response = caller.client.get("/metrics", headers=caller.headers)
    assert response.status_code == 200
    assert response["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response["Cache-Control"] == "no-store"
    samples = Samples()
    for line in response.content.decode().removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            samples[line.split()[2]] = {}
        elif not line.startswith("# HELP "):
            name, values, value = _sample(line)
            assert values not in samples[name], "exported twice"
            samples[name][values] = value
    return samples


def _sample(line: str) -> tuple[str, tuple[str, ...], float]:
    match = LINE.fullmatch(line)
    assert match, line
    labels = LABEL.findall(match[2] or "")
    return match[1], tuple(_plain(value) for _, value in labels), float(match[3])


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), value)


def test_open_poisons_are_counted_and_dated_by_topic(
    reader: Caller, now: datetime
) -> None:
    first, second = now - timedelta(hours=2), now - timedelta(hours=1)
    capture(first, failure(first), failure(first, exception=None))
    capture(second, failure(second), failure(second, topic="mail"))
    drop(now, *Poison.objects.filter(last_failed_at=first)[:1])

    samples = scrape(reader)

    assert samples["poison_open"] == {("mail",): 1, ("orders",): 2}
    oldest = samples["poison_oldest_seconds"]
    assert oldest["orders",] == pytest.approx(7200, abs=60)
    assert oldest["mail",] == pytest.approx(3600, abs=60)
    assert samples["metrics_complete"] == {(): 1}


def test_a_topic_without_open_poisons_has_zeros(reader: Caller, orders: Topic) -> None:
    samples = scrape(reader)

    assert samples["poison_open"] == {("orders",): 0}
    assert samples["poison_oldest_seconds"] == {("orders",): 0}


@pytest.mark.parametrize(
    ("state", "age", "up"),
    [
        *(("running", 1, 1), ("holding", 1, 1), ("paused", 1, 1)),
        ("expected", 1, 1),
        *(("away", 1, 0), ("missing", 1, 0), ("running", 60, 0)),
    ],
)
def test_a_lane_is_up_while_it_is_heard_and_can_work(
    reader: Caller, orders: Topic, now: datetime, state: str, age: int, up: int
) -> None:
    seen_at = now - timedelta(seconds=age)
    Lane.objects.update(state=state, seen_at=seen_at, depth=7, mode="capture")

    samples = scrape(reader)

    assert samples["lane_up"] == {("capture", "orders"): up}
    assert samples["lane_lag"] == ({("orders",): 7} if age == 1 else {})


def test_items_of_operations_that_go_on_are_counted_by_their_state(
    reader: Caller, orders: Topic, operator: Principal, now: datetime
) -> None:
    capture(now, failure(now), failure(now))
    before = scrape(reader)["operation_items"]
    selection = SelectionRequest(verb=Verb.REDRIVE, query=Query.parse("topic:orders"))
    operation = operation_enqueueing.preview(
        selection=selection, principal=operator, now=now
    )
    previews.take(operation_id=operation.pk, now=now)
    operation_enqueueing.confirm(
        token=operation.token, reason="r", principal=operator, now=now
    )

    items = scrape(reader)["operation_items"]

    assert before == {(word,): 0 for word in STANDINGS}
    assert items == {**before, ("waiting",): 2}


def test_endpoints_are_measured_where_a_key_sees_their_topic() -> None:
    now = clock.now()
    stock, spare = endpoint("stock", breaker_failures=1), endpoint("spare")
    hour = timedelta(hours=1)
    accept(endpoint=stock, new=request(is_delayed_by=7_200), now=now - hour)
    accept(endpoint=stock, new=request(DOWN, tried_at=now), now=now)
    EndpointActivity.objects.filter(endpoint=stock).update(heard_at=now)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    CallCount.objects.all().delete()
    CallCount.objects.create(
        endpoint=stock, minute=midnight, succeeded_at_first=5, failed=2
    )
    CallCount.objects.create(endpoint=stock, minute=midnight - hour, failed=9)

    samples = scrape(program(Scope.METRICS_READ, topics=["gateway/stock"]))

    assert samples["endpoint_waiting"] == {("stock",): 2}
    assert samples["endpoint_next_due_seconds"]["stock",] < 3_600
    assert samples["endpoint_oldest_seconds"]["stock",] == pytest.approx(3_600, abs=60)
    assert samples["endpoint_breaker_open"] == {("stock",): 1}
    assert samples["endpoint_sender_up"] == {("stock",): 1}
    assert samples["endpoint_calls_total"] == {
        ("failed", "stock"): 2,
        ("given_up", "stock"): 0,
        ("succeeded_at_first", "stock"): 5,
        ("succeeded_later", "stock"): 0,
    }
    other = scrape(program(Scope.METRICS_READ, topics=[spare.topic.name]))
    assert other["endpoint_waiting"] == {("spare",): 0}
    assert other["endpoint_next_due_seconds"] == {}
    assert other["endpoint_sender_up"] == {("spare",): 0}


def test_hostile_names_are_escaped_cut_and_stay_unique(
    reader: Caller, now: datetime
) -> None:
    for name in (HOSTILE + "1", HOSTILE + "2", "back\\slash", 'quo"te', "two\nlines"):
        Topic.objects.create(name=name, native_name=name)

    Topic.objects.create(name="a\rb\x85\x1b", native_name="a")
    names = {name for (name,) in scrape(reader)["poison_open"]}

    assert r"a\x0db\x85\x1b" in names
    assert {"back\\slash", 'quo"te', "two\nlines"} < names
    cut = [name for name in names if name.startswith('a"} 1\nb\\')]
    assert [len(name) for name in cut] == [metrics.LONGEST_LABEL] * 2


def test_topics_beyond_the_limit_have_no_series(
    reader: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_TOPICS", 2)
    for name in "abc":
        Topic.objects.create(name=name, native_name=name)

    assert set(scrape(reader)["poison_open"]) == {("a",), ("b",)}


def test_the_limit_counts_only_the_topics_that_a_key_may_see(
    orders: Topic, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_TOPICS", 1)
    first = Topic.objects.create(
        name="first",
        native_name="first",
        broker=orders.broker,
        dead_letter_queue="first-poison",
    )
    Lane.objects.create(topic=first)
    Lane.objects.update(state="running", seen_at=now, depth=7)

    samples = scrape(program(Scope.METRICS_READ, topics=["orders"]))

    assert samples["poison_open"] == {("orders",): 0}
    assert samples["lane_lag"] == {("orders",): 7}


def test_a_key_for_some_topics_sees_no_other_and_no_sum(orders: Topic) -> None:
    Topic.objects.create(name="mail", native_name="mail")

    samples = scrape(program(Scope.METRICS_READ, topics=["mail*"]))

    assert samples["poison_open"] == {("mail",): 0}
    assert samples["lane_up"] == {}
    assert samples["operation_items"] == {}


def test_a_part_that_takes_too_long_is_left_out_and_marked_incomplete(
    reader: Caller, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poison_counts_by_state, "_OLDEST", SLOW_IF_LIMITED)

    samples = scrape(reader)

    assert "poison_oldest_seconds" not in samples
    assert samples["poison_open"] == {("orders",): 0}
    assert samples["lane_up"] == {("capture", "orders"): 0}
    assert samples["metrics_complete"] == {(): 0}


def test_open_poisons_are_never_left_out_however_long_it_takes_to_count_them(
    reader: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(now, failure(now))
    limit = "current_setting('statement_timeout')"
    unlimited = poison_counts_by_state._BY_TOPIC.replace(
        "WHERE", f"WHERE {limit} = '0' AND", 1
    )
    monkeypatch.setattr(poison_counts_by_state, "_BY_TOPIC", unlimited)

    samples = scrape(reader)

    assert samples["poison_open"] == {("orders",): 1}
    assert samples["metrics_complete"] == {(): 1}


def test_metrics_need_their_scope() -> None:
    others = program(*(set(Scope) - {Scope.METRICS_READ}))
    statuses = [
        caller.client.get("/metrics", headers=caller.headers).status_code
        for caller in (anonymous(), others, person())
    ]

    assert statuses == [401, 403, 403]


def test_the_number_of_queries_does_not_grow_with_topics(
    reader: Caller, orders: Topic, django_assert_max_num_queries: Any
) -> None:
    scrape(reader)
    for n in range(20):
        topic = Topic.objects.create(
            name=f"t{n}",
            native_name=f"t{n}",
            broker=orders.broker,
            dead_letter_queue=f"t{n}-poison",
        )
        Lane.objects.create(topic=topic)

    with django_assert_max_num_queries(25):
        assert len(scrape(reader)["lane_up"]) == 21


def test_every_rule_is_complete_and_explained() -> None:
    explained = (DOCS / "metrics-and-alerts.md").read_text()

    assert len(RULES) >= 5
    for rule in RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert f"`{rule['alert']}`" in explained


def test_every_rule_uses_existing_metrics_and_labels(
    reader: Caller, orders: Topic, broker: Queues, now: datetime
) -> None:
    Lane.objects.update(state="running", seen_at=now, depth=7)
    accept(endpoint=endpoint(), new=request(), now=now)
    outbox_at("postgresql://sweeper:x@127.0.0.1/shop")
    response = reader.client.get("/metrics", headers=reader.headers)
    exported = set(
        re.findall(r"^# TYPE (\w+)", response.content.decode(), re.MULTILINE)
    )
    labels = set(re.findall(r'(\w+)="', response.content.decode()))

    for rule in RULES:
        assert set(_names(rule["expr"])) <= exported, rule["alert"]
        used = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        used += re.findall(r"[{,]\s*(\w+)\s*(?:=|!)", rule["expr"])
        assert set(used) <= labels, rule["alert"]
    explained = set(
        re.findall(
            r"^\| `(\w+)", (DOCS / "metrics-and-alerts.md").read_text(), re.MULTILINE
        )
    )
    assert exported <= explained


def _names(expression: str) -> Iterator[str]:
    """Give the names of metrics in an expression, without functions and labels."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|on \([^)]*\)', "", expression)
    for word in re.findall(r"\b[a-z]\w*\b(?!\s*\()", bare):
        if word not in {"and", "or", "unless"}:
            yield word
