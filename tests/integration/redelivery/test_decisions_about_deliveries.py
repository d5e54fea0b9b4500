"""People try deliveries now, give them up and restore them, each on the trail."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.audit.models import Entry
from apps.core.errors import Forbidden, Invalid
from apps.poison.models import Body, Poison
from apps.redelivery.models import CallCount, Delivery
from apps.redelivery.services import delivery_decisions
from apps.redelivery.services.request_acceptance import accept
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    DOWN,
    NOW,
    claim,
    endpoint,
    later,
    request,
)

pytestmark = pytest.mark.django_db


def trail() -> list[tuple[str, str, str]]:
    """Return action, subject and reason of the decisions about deliveries."""
    records = [json.loads(entry.record) for entry in Entry.objects.order_by("seq")]
    return [
        (record["action"], record["subject"], record["reason"])
        for record in records
        if record["action"].startswith("deliveries.")
    ]


def test_a_waiting_delivery_is_tried_now() -> None:
    stock = endpoint()
    new = request(DOWN)
    accept(endpoint=stock, new=new, now=NOW)
    assert claim(stock, at=1) == []

    assert (
        delivery_decisions.retry_now(
            ids=[new.id], principal=ADMIN, reason="it is back", now=later(1)
        )
        == 1
    )

    assert [each.id for each in claim(stock, at=1)] == [new.id]
    assert trail() == [("deliveries.retried", f"delivery:{new.id}", "it is back")]


def test_giving_up_ends_deliveries_as_their_endpoint_says() -> None:
    triage, drop = endpoint(), endpoint("drop", at_end="drop")
    for each in (triage, drop):
        accept(endpoint=each, new=request(), now=NOW)
    ids = list(Delivery.objects.values_list("pk", flat=True))

    number = delivery_decisions.give_up(
        ids=ids, principal=ADMIN, reason="sold out", now=NOW
    )

    assert number == 2

    assert Delivery.objects.get(endpoint=triage).state == "given_up"
    assert Poison.objects.get().cause == "manual"
    assert Delivery.objects.get(endpoint=drop).state == "dropped"
    assert trail() == [("deliveries.given_up", "deliveries", "sold out")]


def test_many_that_are_given_up_are_counted_at_the_end_once_for_each_endpoint() -> None:
    both = [endpoint(), endpoint("drop", at_end="drop")]
    for each in (*both, *both):
        accept(endpoint=each, new=request(), now=NOW)
    ids = list(Delivery.objects.values_list("pk", flat=True))

    with CaptureQueriesContext(connection) as queries:
        delivery_decisions.give_up(ids=ids, principal=ADMIN, reason="sold out", now=NOW)

    statements = [query["sql"].lstrip().split(" AS count")[0] for query in queries]
    number = statements.count("INSERT INTO redelivery_call_count")
    last_end = max(n for n, sql in enumerate(statements) if sql.startswith("UPDATE"))
    assert number == 2
    assert statements.index("INSERT INTO redelivery_call_count") > last_end
    assert set(CallCount.objects.values_list("given_up", flat=True)) == {2}


def test_many_are_given_up_by_as_many_statements_as_few() -> None:
    few, many = [give_up_new(number) for number in (2, 30)]

    assert many == few


def give_up_new(number: int) -> int:
    """Give up deliveries that failed once each; return how many statements it took."""
    endpoint_of_these = endpoint(f"stock-{number}", retries=3)
    new = [request(DOWN, body=b"%d" % n) for n in range(number)]
    for each in new:
        accept(endpoint=endpoint_of_these, new=each, now=NOW)

    with CaptureQueriesContext(connection) as queries:
        delivery_decisions.give_up(
            ids=[each.id for each in new],
            principal=ADMIN,
            reason="sold out",
            now=NOW,
        )

    rows = Delivery.objects.filter(endpoint=endpoint_of_these).order_by("pk")
    assert {each.state for each in rows} == {"given_up"}
    bodies = {each.poison_id: bytes(each.content) for each in Body.objects.all()}
    assert [bodies[each.poison or 0] for each in rows] == [each.body for each in new]
    return len(queries)


@pytest.mark.parametrize(
    ("limit", "most"), [("MOST_IN_BATCH", 2), ("MOST_BYTES_IN_BATCH", 2)]
)
def test_few_bodies_are_in_memory_while_many_are_given_up(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(f"apps.redelivery.services.delivery_endings.{limit}", most)
    stock = endpoint()
    new = [request(body=b"x"), request(body=b"y"), request(body=b"zzzz")]
    for each in new:
        accept(endpoint=stock, new=each, now=NOW)

    with CaptureQueriesContext(connection) as queries:
        delivery_decisions.give_up(
            ids=[each.id for each in new],
            principal=ADMIN,
            reason="sold out",
            now=NOW,
        )

    assert sum("redelivery_delivery_body" in each["sql"] for each in queries) == 2
    assert Poison.objects.count() == 3


def test_a_dropped_delivery_is_restored_with_its_whole_plan() -> None:
    stock = endpoint(retries=0, at_end="drop", expiry=60.0)
    new = request(DOWN)
    accept(endpoint=stock, new=new, now=NOW)

    assert (
        delivery_decisions.restore(ids=[new.id], principal=ADMIN, now=later(100)) == 1
    )

    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.retry_count) == ("waiting", 0)
    assert (delivery.due_at, delivery.expires_at) == (later(100), later(160))
    assert delivery.attempts == 1


def test_what_is_being_tried_or_is_over_stays_as_it_is() -> None:
    stock = endpoint()
    new = request()
    accept(endpoint=stock, new=new, now=NOW)
    claim(stock)

    for decide in (
        delivery_decisions.retry_now,
        delivery_decisions.give_up,
        delivery_decisions.restore,
    ):
        assert decide(ids=[new.id], principal=ADMIN, reason="late", now=NOW) == 0

    assert Delivery.objects.get().state == "trying"
    assert trail() == []


def test_others_deliveries_are_out_of_reach() -> None:
    new = request()
    accept(endpoint=endpoint(), new=new, now=NOW)
    stranger = replace(ADMIN, topics=("orders",))
    give_up = partial(delivery_decisions.give_up, reason="late", now=NOW)

    assert give_up(ids=[new.id], principal=stranger) == 0
    with pytest.raises(Forbidden):
        give_up(ids=[new.id], principal=replace(ADMIN, scopes=frozenset()))
    with pytest.raises(Invalid, match="1 to 1,000"):
        give_up(ids=[uuid.uuid4() for _ in range(1_001)], principal=ADMIN)
