"""The page of a requeue names the rules that pass over messages without an answer."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from redis import Redis

from apps.brokers.models import Topic
from apps.core.statement_timeouts import TOO_SLOW
from apps.dashboard.selectors import operation_progress
from apps.dashboard.selectors.skips import UnansweredMatches
from apps.poison import skip_addition_and_removal
from apps.poison.query_language import Query
from apps.poison.services import redrive_confirmations_by_token
from apps.poison.states import SILENT_AFTER
from apps.team.rights import Principal
from apps.triage.item_standings import ItemStanding, standings_of
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import requeues_in_vain
from tests.failure_report_builders import poisons
from tests.integration.dashboard.pages import get, words
from tests.skip_builders_and_list_mirror import added, rule, topic_named
from tests.triage_operation_runner import confirm, preview, run, sent_messages

pytestmark = pytest.mark.django_db(transaction=True)


def of_tenants(now: datetime, *tenants: str) -> None:
    for tenant in tenants:
        poisons(now, 1, headers=[("tenant", tenant.encode())])


def requeue(who: Principal, now: datetime, **selection: Any) -> Operation:
    operation = confirm(who, preview(who, now, **selection), now)
    run(operation, now)
    return operation


def matches(operation: Operation, who: Principal, now: datetime) -> dict[int, int]:
    """Return how many messages without an answer each skip matches."""
    progress = operation_progress.progress(operation.pk, who, now=now)
    assert isinstance(progress.unanswered, UnansweredMatches)
    return {row.skip.pk: number for row, number in progress.unanswered.skips}


def test_rules_are_named_with_the_number_of_messages_that_each_matches(
    anna: Client, orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme", "acme", "zeta", "else")
    operation = requeue(operator, now)
    path = f"/operations/{operation.pk}"

    before = get(anna, path)
    zeta = added(now, rule(header="tenant", equals="zeta"))
    one = get(anna, path)
    acme = added(now, rule(header="Tenant", equals="acme"))
    both = get(anna, path)

    assert "without an answer" not in before
    assert "1 message without an answer matches an active rule" in words(one)
    assert "Skipped by header tenant is zeta" in words(one)
    assert f'href="/skips/{zeta.pk}"' in one
    assert "3 messages without an answer match an active rule" in words(both)
    assert "of the 4 messages looked at" in words(both)
    assert both.index(f'href="/skips/{acme.pk}"') < both.index(
        f'href="/skips/{zeta.pk}"'
    )
    assert matches(operation, operator, now) == {acme.pk: 2, zeta.pk: 1}


def test_a_message_that_a_consumer_answered_counts_no_more(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme", "acme")
    skip = added(now, rule(header="tenant", equals="acme"))
    operation = requeue(operator, now)
    unanswered = matches(operation, operator, now)
    handled, recurred = [
        (each[b"x-poisonweb-redrive"].decode(), "orders")
        for each in sent_messages(stream)
    ]

    redrive_confirmations_by_token.confirm(tokens=[handled], now=now)
    one_left = matches(operation, operator, now)
    poisons(now, 1, redrive=recurred[0], headers=[("tenant", b"acme")])

    assert (unanswered, one_left) == ({skip.pk: 2}, {skip.pk: 1})
    assert matches(operation, operator, now) == {}


def test_other_skips_and_ended_rules_are_not_named(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    (poison,) = poisons(now, 1, headers=[("tenant", b"acme")])
    operation = requeue(operator, now)
    added(now, poison.bookmark_text)
    added(now, rule(header="tenant", equals="acme"), consumer_group="audit")
    ended = added(now, rule(header="tenant", equals="acme"))

    assert matches(operation, operator, now) == {ended.pk: 1}
    skip_addition_and_removal.remove(
        skip_id=ended.pk, reason="mended", principal=operator, now=now
    )
    assert matches(operation, operator, now) == {}


def test_what_was_sent_to_another_topic_is_left_out_as_no_answer_is_due(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme")
    aside = Topic.objects.create(
        name="aside", native_name=str(uuid.uuid4()), broker=orders.broker
    )
    added(now, rule(header="tenant", equals="acme"), topic=orders)
    added(now, rule(header="tenant", equals="acme"), topic=aside)

    operation = requeue(operator, now, target_topic="aside")

    assert matches(operation, operator, now) == {}


def test_what_a_policy_sent_elsewhere_is_left_out_beside_what_stayed(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requeues_in_vain, "MOST_UNANSWERED", 1)
    poisons(now, 1, topic="later", headers=[("tenant", b"acme")])
    of_tenants(now, "acme")
    later = Topic.objects.filter(name="later")
    later.update(requeue_topic=orders, broker=orders.broker)
    skip = added(now, rule(header="tenant", equals="acme"), topic=orders)
    added(now, rule(header="tenant", equals="acme"), topic=later.get())

    operation = requeue(operator, now, query=Query.parse(""))

    assert matches(operation, operator, now) == {skip.pk: 1}


def test_a_skip_that_was_added_when_the_message_was_silent_explains_nothing(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme", "zeta")
    operation = requeue(operator, now)
    silent, late = now + SILENT_AFTER, now + SILENT_AFTER + timedelta(seconds=1)

    added(late, rule(header="tenant", equals="acme"))
    added(late, rule(header="tenant", equals="zeta"), consumer_group="billing")
    in_time = added(silent, rule(header="tenant", equals="zeta"))

    assert matches(operation, operator, late) == {in_time.pk: 1}


def test_nothing_is_asked_of_skips_until_the_operation_is_over(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme")
    skip = added(now, rule(header="tenant", equals="acme"))
    operation = requeue(operator, now)
    state = Operation.objects.filter(pk=operation.pk)

    state.update(state="paused", finished_at=None)
    with CaptureQueriesContext(connection) as queries:
        at_work = matches(operation, operator, now)
    state.update(state="done", finished_at=now)

    assert (at_work, matches(operation, operator, now)) == ({}, {skip.pk: 1})
    assert not [each["sql"] for each in queries if "poison_skip" in each["sql"]]


def test_messages_are_not_read_where_no_rule_is_in_force(
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_tenants(now, "acme")
    poisons(now, 1, topic="moved", headers=[("tenant", b"acme")])
    Topic.objects.filter(name="moved").update(requeue_topic=topic_named("later"))
    for name in ("payments", "moved", "later"):
        topic = topic_named(name)
        added(now, rule(header="tenant", equals="acme"), topic=topic)
    expiry = now + timedelta(hours=1)
    added(now, rule(header="tenant", equals="acme"), expires_at=expiry)
    added(now, "7-0")
    operation = requeue(operator, now, query=Query.parse(""))
    reads = []

    def note_read(of: Operation, **choice: Any) -> list[ItemStanding]:
        reads.append(of)
        return standings_of(of, **choice)

    monkeypatch.setattr(requeues_in_vain, "standings_of", note_read)

    assert matches(operation, operator, expiry) == {}
    assert reads == []
    matches(operation, operator, now)
    assert reads == [operation]


def test_the_version_is_named_where_a_rule_is_for_one_only(
    anna: Client, orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme", "acme", "zeta")
    one, other = (
        added(now, rule(header="tenant", equals=tenant), handler_version="2026.11<")
        for tenant in ("acme", "zeta")
    )
    operation = requeue(operator, now)

    of_one = words(get(anna, f"/operations/{operation.pk}"))
    for_all = added(now, rule(header="Tenant", equals="acme"))

    assert of_one.count(", for consumers of version 2026.11<") == 2
    assert matches(operation, operator, now) == {for_all.pk: 2, other.pk: 1}
    assert one.pk < for_all.pk


def test_a_drop_and_an_operation_that_sent_nothing_ask_nothing_of_skips(
    orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    of_tenants(now, "acme")
    added(now, rule(header="tenant", equals="acme"))
    waiting = confirm(operator, preview(operator, now), now)
    with CaptureQueriesContext(connection) as queries:
        of_waiting = matches(waiting, operator, now)
    run(waiting, now)
    (other,) = poisons(now, 1, headers=[("tenant", b"acme")])
    dropped = requeue(operator, now, verb=Verb.DROP, ids=(other.pk,))

    assert (of_waiting, matches(dropped, operator, now)) == ({}, {})
    assert not [each["sql"] for each in queries if "poison_skip" in each["sql"]]


def test_only_the_first_unanswered_messages_are_looked_at(
    anna: Client,
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requeues_in_vain, "MOST_UNANSWERED", 2)
    of_tenants(now, "zeta", "acme", "acme")
    skip = added(now, rule(header="tenant", equals="acme"))

    operation = requeue(operator, now)

    page = words(get(anna, f"/operations/{operation.pk}"))
    assert matches(operation, operator, now) == {skip.pk: 1}
    assert "of the first 2 without an answer; there may be more" in page
    monkeypatch.setattr(requeues_in_vain, "MOST_UNANSWERED", 4)
    page = words(get(anna, f"/operations/{operation.pk}"))
    assert "of the 3 messages looked at" in page
    assert "there may be more" not in page


def test_a_page_of_many_unanswered_messages_needs_no_more_queries_than_of_one(
    anna: Client, orders: Topic, stream: Redis, operator: Principal, now: datetime
) -> None:
    added(now, rule(header="tenant", equals="acme"))
    numbers = []
    for number in (1, 12):
        of_tenants(now, *["acme"] * number)
        operation = requeue(operator, now)
        with CaptureQueriesContext(connection) as queries:
            get(anna, f"/operations/{operation.pk}")
        numbers.append(len(queries))

    assert numbers[0] == numbers[1]


def test_matching_that_takes_too_long_is_said_on_the_page(
    anna: Client,
    orders: Topic,
    stream: Redis,
    operator: Principal,
    now: datetime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_tenants(now, "acme")
    operation = requeue(operator, now)
    monkeypatch.setattr(requeues_in_vain, "unless_slow", lambda *_: TOO_SLOW)

    page = words(get(anna, f"/operations/{operation.pk}"))

    assert "took too long to look up" in page
