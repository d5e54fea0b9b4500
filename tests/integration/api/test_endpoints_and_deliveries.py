"""The calls about endpoints and deliveries: their settings, lists and decisions."""

from __future__ import annotations

import json
import socket
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from apps.audit.models import Entry
from apps.core import clock
from apps.redelivery.endpoint_settings_dataclass import EndpointSettings
from apps.redelivery.models import Delivery, Endpoint, EndpointActivity
from apps.redelivery.services.endpoints import visible_endpoint
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Role, Scope
from tests.integration.api.schema_checking_client import Caller, Reply, person, program
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    ADMIN,
    BROKEN,
    NOW,
    TARGET,
    UNKNOWN,
    claim,
    end,
    endpoint,
    later,
    request,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Caller:
    return program(Scope.POISONS_READ, Scope.OPERATIONS_WRITE, Scope.AUDIT_READ)


def patch(caller: Caller, path: str, **changes: object) -> Reply:
    return caller.send("PATCH", path, raw=json.dumps(changes).encode())


def remove(caller: Caller, path: str) -> Reply:
    return caller.send("DELETE", path, raw=b"{}")


def stored(of: Endpoint, number: int = 1, **changes: Any) -> list[str]:
    """Accept requests whose first try failed; return their ids, the latest first."""
    ids = list[str]()
    for _ in range(number):
        new = request(BROKEN, **changes)
        accept(endpoint=of, new=new, now=NOW)
        ids.insert(0, str(new.id))
    return ids


def test_an_endpoint_begins_with_a_preset_and_is_changed_and_removed(
    admin: Caller,
) -> None:
    article = {"name": "quotes", "preset": "article", "target": TARGET, "rate": 5}
    added = admin.post("endpoints", article)
    path = added.response["Location"]
    caller = admin.post(
        "endpoints", {"name": "caller", "preset": "async-caller", "target": TARGET}
    )
    changed = patch(admin, path, retries=None, expiry=60, version=1, reason="slow")
    stale = patch(admin, path, retries=3, version=1)
    removed = remove(admin, path)

    assert added.status == 201
    assert (added.json["retries"], added.json["interval"]) == (10, 3.0)
    assert (added.json["rate"], added.json["topic"]) == (5.0, "gateway/quotes")
    assert added.json["breaker"]["state"] == "closed"
    assert added.json["backlog"]["waiting"] == added.json["calls"]["failed"] == 0
    assert (caller.json["mode"], caller.json["expiry"]) == ("async", 604_800.0)
    assert (caller.json["attempt_timeout"], caller.json["client_timeout"]) == (100, 120)
    assert (changed.json["retries"], changed.json["version"]) == (None, 2)
    assert (stale.status, removed.status) == (409, 200)
    assert [each["name"] for each in admin.get("endpoints").results] == ["caller"]
    reasons = Entry.objects.order_by("seq").values_list("action", "reason")
    assert ("endpoint.altered", "slow") in set(reasons)


def test_an_answer_has_every_setting_as_the_service_has_it(admin: Caller) -> None:
    stock = endpoint(paths=("/a*",), retries=None, expiry=60.0, order_header="x-key")

    seen_one = admin.get(f"endpoints/{stock.pk}").json

    settings = EndpointSettings.of(visible_endpoint(name=stock.name, principal=ADMIN))
    names = EndpointSettings.__slots__
    assert {name: seen_one[name] for name in names} == json.loads(
        json.dumps({name: getattr(settings, name) for name in names})
    )


@pytest.mark.django_db(transaction=True)
def test_no_transaction_waits_for_the_look_up_of_a_new_endpoint(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, address, in_transactions = socket.getaddrinfo, "1.1.1.1", list[bool]()

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        if host != "stock.example":
            return usual(host, *rest, **options)
        in_transactions.append(connection.in_atomic_block)
        return usual(address, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    new = {"name": "quotes", "target": TARGET}
    added = admin.post("endpoints", new, Idempotency_Key="1")
    address = "169.254.169.254"
    again = admin.post("endpoints", new, Idempotency_Key="1")
    other = admin.post("endpoints", new, Idempotency_Key="2")

    assert (added.status, again.status, other.status) == (201, 201, 422)
    assert again.json == added.json
    assert other.pointers == ["/target"]
    assert set(in_transactions) == {False}


@pytest.mark.parametrize(
    ("change", "pointer", "remedy"),
    [
        ({"retries": 1.5}, "/retries", "from 0 to 10000"),
        ({"interval": 0.5}, "/interval", "from 1 to 3,600"),
        ({"expiry": 0}, "/expiry", "from 1 to 31,622,400"),
        ({"interval": True}, "/interval", "send a number"),
        ({"backoff": "none"}, "/backoff", "fixed, exponential"),
        ({"paths": ["a"]}, "/paths", "begins with /"),
        ({"paths": "a"}, "/paths", "send a list"),
        ({"attempt_timeout": 20}, "/claim_timeout", "make it longer"),
        ({"retries": None}, "/retries", "an expiry"),
        ({"at_end": "forward"}, "/at_end", "name one topic or one endpoint"),
        ({"failure_statuses": "6xx"}, "/failure_statuses", "408, 500-599"),
        ({"name": "Quotes"}, "/name", "small letters"),
        ({"preset": "other"}, "/preset", "article, async-caller"),
        ({"colour": 1}, "/colour", "no such member"),
    ],
)
def test_an_invalid_setting_is_a_422_with_its_name_and_the_remedy(
    admin: Caller, change: dict[str, object], pointer: str, remedy: str
) -> None:
    new = {"name": "quotes", "target": TARGET, **change}

    reply = admin.post("endpoints", new)

    assert (reply.status, reply.pointers) == (422, [pointer])
    assert remedy in reply.json["errors"][0]["detail"]
    assert not Endpoint.objects.exists()


def test_a_name_in_use_is_a_409_that_names_it(admin: Caller) -> None:
    endpoint("quotes")

    reply = admin.post("endpoints", {"name": "quotes", "target": TARGET})

    assert (reply.status, reply.pointers) == (409, ["/name"])
    assert "choose another name" in reply.json["errors"][0]["detail"]
    assert reply.json["type"] == "urn:poisonweb:problem:refused"


def test_a_key_for_some_topics_sees_and_changes_only_their_endpoints() -> None:
    mine, other = endpoint("mine"), endpoint("other")
    seen_one, unseen_one = stored(mine)[0], stored(other)[0]
    key = program(topics=["gateway/mine"])

    listed = key.get("endpoints").results
    deliveries = key.get("deliveries").results
    decided = key.post("deliveries/retry", {"ids": [seen_one, unseen_one]})

    assert [each["name"] for each in listed] == ["mine"]
    assert [each["id"] for each in deliveries] == [seen_one]
    assert decided.json == {"total": 2, "acted_on": 1}
    for path in (f"endpoints/{other.pk}", f"deliveries/{unseen_one}"):
        assert key.get(path).status == 404
    assert patch(key, f"endpoints/{other.pk}", retries=1).status == 404
    assert key.post("endpoints", {"name": "third", "target": TARGET}).status == 403


def test_an_open_breaker_says_when_its_next_probe_really_is(admin: Caller) -> None:
    stock = endpoint(breaker_failures=1)
    stored(stock)
    past, soon, late = (clock.now() + timedelta(hours=each) for each in (-1, 1, 2))

    def times(open_until: datetime, **changes: Any) -> list[datetime | None]:
        Delivery.objects.update(**changes)
        EndpointActivity.objects.update(opened_at=past, open_until=open_until)
        answer = admin.get(f"endpoints/{stock.pk}").json
        both = answer["breaker"]["next_probe"], answer["backlog"]["next_due"]
        return [None if each is None else datetime.fromisoformat(each) for each in both]

    assert times(past, due_at=late) == [late, late]
    assert times(late, due_at=soon) == [late, late]
    assert times(late, state="dropped", finished_at=past) == [late, None]
    assert times(past) == [None, None]


def test_an_endpoint_with_deliveries_stays_and_says_what_to_do(admin: Caller) -> None:
    stock = endpoint()
    stored(stock)

    refused = remove(admin, f"endpoints/{stock.pk}")

    assert (refused.status, "disable it" in refused.detail) == (409, True)
    assert admin.get(f"endpoints/{stock.pk}").json["backlog"]["waiting"] == 1


def test_deliveries_are_listed_by_pages_and_filters(operator: Caller) -> None:
    stock, other = endpoint(), endpoint("other")
    ids = stored(stock, 3)
    [apart] = stored(other, is_repeatable=False)
    [claimed] = claim(other, at=3)
    end(other, claimed, UNKNOWN, at=3)
    early, late = NOW - timedelta(days=400), clock.now() + timedelta(days=1)

    def listed(**filters: object) -> list[str]:
        return [each["id"] for each in operator.get("deliveries", **filters).results]

    first = operator.get("deliveries", limit=2).json
    second = operator.get("deliveries", limit=2, cursor=first["next"]).json
    back = operator.get(second["previous_url"].partition("/api/v1/")[2]).json

    assert [each["id"] for each in first["results"]] == [apart, ids[0]]
    assert [each["id"] for each in second["results"]] == ids[1:]
    assert second["next"] is None
    assert back["results"] == first["results"]
    assert listed(endpoint="stock-quote") == ids
    assert listed(state="given_up") == listed(cause="unknown") == [apart]
    assert listed(since=late.isoformat()) == listed(until=early.isoformat()) == []
    assert listed(since=early.isoformat(), until=late.isoformat()) == [apart, *ids]
    assert listed(due=later(3).isoformat()) == ids
    assert listed(due=later(2).isoformat()) == []


@pytest.mark.parametrize(
    ("filters", "pointer", "remedy"),
    [
        ({"state": "lost"}, "/state", "waiting, trying"),
        ({"cause": "why"}, "/cause", "exhausted"),
        ({"since": "noon"}, "/since", "a day such as"),
        ({"due": "9999-12-31T23:00-23:00"}, "/due", "a day such as"),
        ({"endpoint": "\0"}, "/endpoint", "the name"),
    ],
)
def test_an_invalid_filter_is_a_422_with_its_name_and_the_remedy(
    operator: Caller, filters: dict[str, str], pointer: str, remedy: str
) -> None:
    reply = operator.get("deliveries", **filters)

    assert (reply.status, reply.pointers) == (422, [pointer])
    assert remedy in reply.json["errors"][0]["detail"]


def test_a_delivery_shows_its_attempts_and_no_secret(operator: Caller) -> None:
    stock = endpoint(retries=1)
    [id_] = stored(stock)
    [claimed] = claim(stock, at=3)
    end(stock, claimed, BROKEN, at=3)

    reply = operator.get(f"deliveries/{id_}")

    assert reply.json["state"] == "given_up"
    assert (reply.json["cause"], reply.json["retry_count"]) == ("exhausted", 2)
    assert reply.json["poison"] == Delivery.objects.get().poison
    assert [each["number"] for each in reply.json["attempt_list"]] == [2, 1]
    assert reply.json["attempt_list"][0]["status"] == 503
    assert reply.json["header_names"] == ["SOAPAction", "X-Twice"]
    assert b"getQuote" not in reply.response.content
    assert program(Scope.POISONS_READ).get(f"deliveries/{id_}").json["audit"] is None


def test_the_body_is_downloaded_byte_for_byte_and_audited() -> None:
    [id_] = stored(endpoint())
    reader = program(Scope.BODIES_READ)

    body = reader.get(f"deliveries/{id_}/body").response

    assert b"".join(body) == b"<quote>\x00\xff</quote>"
    assert body["Content-Length"] == "17"
    entry = Entry.objects.latest("seq")
    assert (entry.action, entry.subject) == ("body.revealed", f"delivery:{id_}")
    assert (
        person(Role.VIEWER, reads_bodies=True).get(f"deliveries/{id_}/body").status
        == 403
    )


def test_a_decision_acts_once_on_what_its_state_allows(operator: Caller) -> None:
    stock = endpoint(at_end="drop")
    ids = stored(stock, 2)

    given_up = [
        operator.post(
            "deliveries/give-up",
            {"ids": [*ids, ids[0]], "reason": "sold out"},
            Idempotency_Key="a",
        ).json
        for _ in range(2)
    ]
    again = operator.post("deliveries/give-up", {"ids": ids, "reason": "late"}).json
    restored = operator.post("deliveries/restore", {"ids": ids[:1]}).json
    retried = operator.post("deliveries/retry", {"ids": ids}).json

    assert given_up == [{"total": 2, "acted_on": 2}] * 2
    assert again == {"total": 2, "acted_on": 0}
    assert restored == retried | {"total": 1} == {"total": 1, "acted_on": 1}
    actions = Entry.objects.filter(action__startswith="deliveries.").order_by("seq")
    assert list(actions.values_list("action", "reason")) == [
        ("deliveries.given_up", "sold out"),
        ("deliveries.restored", ""),
        ("deliveries.retried", ""),
    ]
    seen_one = operator.get(f"deliveries/{ids[0]}").json["audit"]
    assert len(seen_one) == 3


@pytest.mark.parametrize(
    "reason", [{}, {"reason": None}, {"reason": ""}, {"reason": " \t"}]
)
def test_giving_up_without_a_reason_is_refused(
    operator: Caller, reason: dict[str, object]
) -> None:
    ids = stored(endpoint(), 1)

    reply = operator.post("deliveries/give-up", {"ids": ids, **reason})

    assert (reply.status, reply.pointers) == (422, ["/reason"])
    assert "say why they are given up" in str(reply.json["errors"])
    assert Delivery.objects.get().state == "waiting"
    assert not Entry.objects.filter(action="deliveries.given_up").exists()


@pytest.mark.parametrize("ids", [[], ["x"], None, "x", ["1" * 36] * 2])
def test_a_decision_without_usable_ids_is_a_422(operator: Caller, ids: object) -> None:
    reply = operator.post("deliveries/retry", {"ids": ids})

    assert reply.status == 422
    assert all(pointer.startswith("/ids") for pointer in reply.pointers)


def test_the_lists_need_no_query_for_each_row(
    admin: Caller, operator: Caller, django_assert_max_num_queries: Any
) -> None:
    for number in range(5):
        stored(endpoint(f"stock-{number}"), 3)

    with django_assert_max_num_queries(20, connection=connection):
        assert len(admin.get("endpoints").results) == 5
    with django_assert_max_num_queries(14, connection=connection):
        assert len(operator.get("deliveries").results) == 15


def test_a_topic_is_made_one_of_requests_and_its_endpoints_say_so(
    admin: Caller, redis_url: str
) -> None:
    broker = {"name": "ours", "kind": "redis_streams", "url": redis_url}
    assert admin.post("brokers", broker).status == 201
    fed, other = endpoint(), endpoint("other")
    requests = {
        "name": "requests",
        "broker": "ours",
        "dead_letter_queue": "requests",
        "request_endpoints": ["stock-*"],
        "mode": "capture",
    }

    unread = admin.post("topics", {**requests, "dead_letter_queue": "other"})
    added = admin.post("topics", requests)
    of_fed = admin.get(f"endpoints/{fed.pk}").json
    of_other = admin.get(f"endpoints/{other.pk}").json
    listed = {each["name"]: each["fed_by"] for each in admin.get("endpoints").results}
    cleared = patch(
        admin,
        "topics",
        name="requests",
        request_endpoints=None,
        dead_letter_queue="requests-dead",
    )

    assert (unread.status, added.status, cleared.status) == (422, 201, 200)
    assert added.json["request_endpoints"] == ["stock-*"]
    assert (of_fed["fed_by"], of_other["fed_by"]) == (["requests"], [])
    assert listed == {"stock-quote": ["requests"], "other": []}
    assert cleared.json["request_endpoints"] == []
    assert admin.get(f"endpoints/{fed.pk}").json["fed_by"] == []
    entry = Entry.objects.filter(action="topic.altered").latest("seq")
    assert entry.detail["request_endpoints"] == [["stock-*"], []]


def test_a_key_for_some_endpoints_lets_no_topic_call_another(
    admin: Caller, redis_url: str
) -> None:
    broker = {"name": "ours", "kind": "redis_streams", "url": redis_url}
    assert admin.post("brokers", broker).status == 201
    few = program(
        Scope.BROKERS_READ, Scope.BROKERS_WRITE, topics=["requests", "gateway/stock-*"]
    )
    requests = {"name": "requests", "broker": "ours", "dead_letter_queue": "requests"}

    refused = few.post("topics", {**requests, "request_endpoints": ["*"]})
    added = few.post("topics", {**requests, "request_endpoints": ["stock-*"]})

    assert (refused.status, added.status) == (403, 201)
