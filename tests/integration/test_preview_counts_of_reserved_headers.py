"""Reserved headers: a preview counts the messages that have each of them."""

from __future__ import annotations

from datetime import datetime

import pytest

from apps.brokers.models import Broker, Topic
from apps.core.statement_timeouts import TooSlow
from apps.poison.query_language import Query
from apps.team.rights import Principal
from apps.triage.operation_states import Verb
from apps.triage.services import (
    preview_breakdown_counting,
    preview_summaries,
    previews,
    reserved_header_counts_for_preview,
)
from apps.triage.services.preview_summaries import PreviewSummary
from apps.triage.services.selection_requests import SelectionRequest
from tests.failure_report_builders import capture, drop, failure, poisons

pytestmark = pytest.mark.django_db(transaction=True)

CC, BCC = ("CC", b'["audit"]'), ("BCC", b'["audit"]')
EXPIRES = ("amqp.expiration", b"60000")


@pytest.fixture
def orders() -> Topic:
    broker = Broker.objects.create(name="r", kind="rabbitmq", url="amqp://localhost")
    return Topic.objects.create(name="orders", native_name="orders", broker=broker)


@pytest.fixture
def stream() -> Topic:
    url = "redis://localhost"
    broker = Broker.objects.create(name="s", kind="redis_streams", url=url)
    return Topic.objects.create(name="stream", native_name="stream", broker=broker)


def bearing(now: datetime, *headers: tuple[str, bytes], topic: str = "orders") -> None:
    capture(now, failure(now, topic=topic, headers=headers))


def see(
    who: Principal, now: datetime, verb: Verb, target: str | None = None
) -> PreviewSummary:
    selection = SelectionRequest(verb=verb, query=Query.parse(""), target_topic=target)
    operation = previews.preview(selection=selection, principal=who, now=now)
    return preview_summaries.summarize(operation=operation)


def test_each_reserved_header_is_counted_by_messages(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    bearing(now, CC, ("tenant", b"a"))
    bearing(now, EXPIRES, ("tenant", b"a"), CC, BCC)
    bearing(now, CC, CC)
    bearing(now, ("cc", b"x"), ("tenant", b"BCC"), ("BCC ", b"CC"))
    bearing(now)

    summary = see(operator, now, Verb.REDRIVE)

    assert summary.will_act == 5
    assert summary.left_out == (("CC", 3), ("BCC", 1), ("amqp.expiration", 1))


def test_headers_of_a_failure_do_not_count_as_left_out(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    bearing(now, ("x-delivery-count", b"3"), ("x-death", b"[]"))

    assert see(operator, now, Verb.REDRIVE).left_out == ()


def test_the_broker_of_the_target_names_the_reserved_headers(
    orders: Topic, stream: Topic, operator: Principal, now: datetime
) -> None:
    bearing(now, CC)
    bearing(now, CC, topic="stream")
    bearing(now, CC, topic="of no broker")

    home = see(operator, now, Verb.REDRIVE)
    away = see(operator, now, Verb.REDRIVE, "stream")
    together = see(operator, now, Verb.REDRIVE, "orders")

    assert home.left_out == (("CC", 1),)
    assert away.left_out == ()
    assert together.left_out == (("CC", 3),)


def test_messages_that_will_not_be_sent_are_not_counted(
    orders: Topic, operator: Principal, now: datetime
) -> None:
    bearing(now, CC)
    drop(now, *poisons(now, 2, headers=[CC]))

    assert see(operator, now, Verb.REDRIVE).left_out == (("CC", 1),)
    assert see(operator, now, Verb.DROP).left_out == ()


def test_a_preview_leaves_out_the_counts_that_take_too_long(
    orders: Topic, operator: Principal, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bearing(now, CC)
    slow = reserved_header_counts_for_preview.COUNT.replace(
        "WHERE", "WHERE pg_sleep(1) IS NOT NULL AND", 1
    )
    monkeypatch.setattr(reserved_header_counts_for_preview, "COUNT", slow)
    monkeypatch.setattr(preview_breakdown_counting, "LEAST_SECONDS", 0.1)

    summary = see(operator, now, Verb.REDRIVE)

    assert summary.will_act == 1
    assert isinstance(summary.left_out, TooSlow)
