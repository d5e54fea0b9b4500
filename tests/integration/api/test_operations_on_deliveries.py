"""Operations on deliveries over the API: as those on messages, by one set of calls."""

from __future__ import annotations

import uuid

import pytest

from apps.core import clock
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Scope
from apps.triage.models import Operation
from tests.integration.api.schema_checking_client import Caller, program
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    BROKEN,
    NOW,
    endpoint,
    request,
)
from tests.triage_operation_runner import run

pytestmark = pytest.mark.django_db


def stored(of: Endpoint, number: int) -> list[uuid.UUID]:
    news = [request(BROKEN) for _ in range(number)]
    for new in news:
        accept(endpoint=of, new=new, now=NOW)
    return [new.id for new in news]


def test_deliveries_are_previewed_confirmed_and_followed(
    operations_caller: Caller,
) -> None:
    ids = stored(endpoint(), 2)
    stored(endpoint("other"), 1)
    ask = {
        "verb": "try_now",
        "deliveries": {"endpoint": "stock-quote", "state": "waiting"},
        "rate": 20,
    }

    preview = operations_caller.post("operations/preview", ask).json
    again = operations_caller.get("operations/preview", token=preview["token"]).json
    accepted = operations_caller.post(
        "operations", {"token": preview["token"], "reason": ""}
    )
    number = accepted.json["id"]
    paused = operations_caller.post(f"operations/{number}/pause", {}).json
    operations_caller.post(f"operations/{number}/resume", {})
    rate = operations_caller.post(
        f"operations/{number}/rate", {"rate": 30, "reason": ""}
    ).json
    run(Operation.objects.get(), clock.now())
    detail = operations_caller.get(f"operations/{number}").json
    items = operations_caller.get(f"operations/{number}/items").json
    listed = operations_caller.get("operations").json["results"]

    assert (preview["items"], preview["verb"]) == ("delivery", "try_now")
    assert preview["q"] == "endpoint=stock-quote&state=waiting"
    assert (preview["total"], preview["will_act"], preview["rate"]) == (2, 2, 20)
    assert preview["endpoints"] == [{"name": "stock-quote", "count": 2}]
    assert (preview["sample"], again["total"]) == ([], 2)
    assert (paused["state"], rate["rate_limit"]) == ("paused", 30)
    assert (detail["state"], detail["acted"]) == ("done", 2)
    assert detail["counts"]["due"] == 2
    assert [(item["poison"], item["delivery"]) for item in items["results"]] == [
        (None, str(pk)) for pk in ids
    ]
    assert {item["standing"] for item in items["results"]} == {"due"}
    assert (listed[0]["id"], listed[0]["items"]) == (number, "delivery")


def test_items_are_read_by_pages_and_by_standing(operations_caller: Caller) -> None:
    ids = stored(endpoint(), 3)
    preview = operations_caller.post(
        "operations/preview", {"verb": "give_up", "deliveries": {}}
    ).json
    number = operations_caller.post(
        "operations", {"token": preview["token"], "reason": "sold out"}
    ).json["id"]
    Delivery.objects.filter(pk=ids[1]).update(state="delivered", finished_at=NOW)
    run(Operation.objects.get(), clock.now())

    path = f"operations/{number}/items"
    first = operations_caller.get(path, limit=2).json
    rest = operations_caller.get(path, limit=2, after=first["next"]).json
    skipped = operations_caller.get(path, standing="skipped").json["results"]

    rows = [*first["results"], *rest["results"]]
    assert [row["delivery"] for row in rows] == [str(pk) for pk in ids]
    assert [row["standing"] for row in rows] == ["given_up", "skipped", "given_up"]
    assert [row["explanation"] for row in skipped] == ["already delivered"]


@pytest.mark.parametrize(
    ("ask", "member"),
    [
        ({"verb": "drop", "deliveries": {}}, "verb"),
        ({"verb": "try_now", "q": ""}, "verb"),
        ({"verb": "try_now", "deliveries": {}, "q": ""}, "q"),
        ({"verb": "try_now", "deliveries": {}, "ids": [71]}, "q"),
        ({"verb": "try_now", "deliveries": {"state": "open"}}, "state"),
        ({"verb": "try_now", "deliveries": {"since": "x"}}, "since"),
        ({"verb": "try_now", "deliveries": {"topic": "x"}}, "deliveries/topic"),
        ({"verb": "try_now", "deliveries": {"endpoint": 7}}, "deliveries/endpoint"),
        ({"verb": "try_now", "deliveries": "all"}, "deliveries"),
        ({"verb": "give_up", "deliveries": {}, "rate": 5}, "rate"),
        ({"verb": "try_now", "deliveries": {}, "target_topic": "x"}, "target_topic"),
        ({"verb": "try_now", "deliveries": {}, "ramp": {"steps": [1]}}, "ramp"),
        ({"verb": "try_now"}, "q"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_meant_is_a_422(
    operations_caller: Caller, ask: dict[str, object], member: str
) -> None:
    reply = operations_caller.post("operations/preview", ask)

    assert reply.status == 422
    assert member in str(reply.json)
    assert not Operation.objects.exists()


def test_a_give_up_without_a_reason_is_a_422(operations_caller: Caller) -> None:
    stored(endpoint(), 1)
    preview = operations_caller.post(
        "operations/preview", {"verb": "give_up", "deliveries": {}}
    )

    reply = operations_caller.post(
        "operations", {"token": preview.json["token"], "reason": ""}
    )

    assert reply.status == 422
    assert Operation.objects.get().state == "preview"


def test_a_key_for_other_topics_selects_nothing_and_sees_no_operation() -> None:
    stored(endpoint(), 1)
    stranger = program(Scope.OPERATIONS_READ, Scope.OPERATIONS_WRITE, topics=["orders"])

    preview = stranger.post("operations/preview", {"verb": "try_now", "deliveries": {}})

    assert preview.json["total"] == 0
