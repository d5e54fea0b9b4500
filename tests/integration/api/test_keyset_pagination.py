"""Every list can be read page by page, forwards and backwards, with each row once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from django.core import signing

from apps.api.views.openapi_reference import schema
from apps.audit import services as audit
from apps.audit.services import Action
from apps.brokers.models import Broker, Topic
from apps.core import clock
from apps.core.actor import Actor
from apps.outbox.models import Outbox
from apps.redelivery.models import Endpoint
from apps.redelivery.services.request_acceptance import accept
from apps.triage.models import Operation
from tests.failure_report_builders import poisons
from tests.integration.api.schema_checking_client import ROOT, Caller, program
from tests.integration.outbox.outbox_builders import outbox_at
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    endpoint,
    request,
)
from tests.position_opening_and_settling import opened
from tests.published_reports import endpoint_day, publish, rate, run

pytestmark = pytest.mark.django_db

Row = dict[str, Any]
INSTANT = timedelta(microseconds=1)
MONDAY, TUESDAY = date(2026, 11, 16), date(2026, 11, 17)
THEN = {"from": "2026-11-16", "to": "2026-11-17"}
NUMBER = 5


def add_poisons(number: int) -> None:
    """Capture messages with problems of their own; each two failed at the same time."""
    now = clock.now()
    for n in range(number):
        error = {"type": f"E{now.timestamp()}{n}", "message": "", "traceback": ""}
        at = (now - (number - n) // 2 * INSTANT).isoformat()
        poisons(now, 1, exception=error, first_failed_at=at, failed_at=at)


def add_operations(number: int) -> None:
    for _ in range(number):
        now = clock.now()
        Operation.objects.create(
            verb="redrive",
            state="done",
            actor="user:anna",
            source="ui",
            topics=["*"],
            taken=True,
            created_at=now,
            expires_at=now,
            confirmed_at=now,
            finished_at=now,
        )


def add_entries(number: int) -> None:
    for _ in range(number):
        audit.record(
            action=Action.KEY_CREATED,
            subject="key:x",
            actor=Actor.user("anna"),
            now=clock.now(),
        )


def add_brokers(number: int) -> None:
    first = Broker.objects.count()
    for n in range(first, first + number):
        Broker.objects.create(name=f"b{n}", kind="redis_streams")


def add_topics(number: int) -> None:
    first = Topic.objects.count()
    for n in range(first, first + number):
        Topic.objects.create(name=f"t{n}", native_name=f"t{n}")


def add_positions(number: int) -> None:
    for n in range(number):
        opened(clock.now(), client_name=f"{clock.now().timestamp()}-{n}")


def add_runs(number: int) -> None:
    for _ in range(number):
        run(MONDAY)


def add_rates(_: int) -> None:
    publish(MONDAY, TUESDAY)
    for day in (MONDAY, TUESDAY):
        for topic in "abc":
            rate(day, 10, 1, topic=topic)
            for hour in (0, 13, 23):
                rate(day, 10, 1, topic=topic, hour=hour)


def add_endpoint_days(_: int) -> None:
    publish(MONDAY, TUESDAY)
    for day in (MONDAY, TUESDAY):
        for name in "abc":
            endpoint_day(day, name)


def add_endpoints(number: int) -> None:
    first = Endpoint.objects.count()
    for n in range(first, first + number):
        endpoint(f"e{n}")


def add_outboxes(number: int) -> None:
    first = Outbox.objects.count()
    for n in range(first, first + number):
        outbox_at(f"postgresql://sweeper:x@127.0.0.1/shop{n}", f"o{n}")


def add_deliveries(number: int) -> None:
    of = Endpoint.objects.first() or endpoint()
    for _ in range(number):
        accept(endpoint=of, new=request(), now=clock.now())


LISTS: dict[str, Callable[[int], None]] = {
    "poisons": add_poisons,
    "problems": add_poisons,
    "operations": add_operations,
    "audit": add_entries,
    "brokers": add_brokers,
    "topics": add_topics,
    "positions": add_positions,
    "endpoints": add_endpoints,
    "outboxes": add_outboxes,
    "deliveries": add_deliveries,
    "reports/runs": add_runs,
    "reports/endpoints": add_endpoint_days,
    "reports/failure-rates": add_rates,
    "reports/failure-rates?by=hour": add_rates,
}
BY_DAY = ("reports/failure-rates", "reports/endpoints")
NEWEST_FIRST = (
    *("poisons", "problems", "operations", "audit", "deliveries"),
    "reports/runs",
)
each_list = pytest.mark.parametrize("path", LISTS)


def query_of(path: str) -> dict[str, str]:
    name, _, query = path.partition("?")
    own = dict([query.split("=")]) if query else {}
    return own | (THEN if name in BY_DAY else {})


def get(caller: Caller, path: str, **query: object) -> Row:
    reply = caller.get(path.partition("?")[0], **query_of(path), **query)
    assert reply.status == 200, reply.json
    page: Row = reply.json
    return page


def follow(caller: Caller, page: Row, member: str) -> list[Row]:
    """Read the pages that `next_url` or `previous_url` leads to, up to the end."""
    pages = list[Row]()
    while (page := pages[-1] if pages else page)[member]:
        address = urlsplit(page[member])
        assert (address.scheme, address.netloc) == ("http", "testserver")
        query = {name: texts[0] for name, texts in parse_qs(address.query).items()}
        pages.append(caller.get(address.path, **query).json)
        assert pages[-1]["results"]
    return pages


def rows_of(pages: list[Row]) -> list[Row]:
    return [row for page in pages for row in page["results"]]


def test_each_list_of_the_schema_with_a_cursor_is_walked() -> None:
    paths = {
        path.removeprefix(ROOT)
        for path, calls in schema()["paths"].items()
        for each in calls.get("get", {}).get("parameters", ())
        if each["name"] == "cursor"
    }

    assert paths == {path.partition("?")[0] for path in LISTS}


@each_list
def test_a_walk_to_the_end_and_back_has_each_row_once_in_the_same_order(
    path: str,
) -> None:
    LISTS[path](NUMBER)
    caller = program()
    whole = get(caller, path, limit=200)
    rows = whole["results"]
    assert len(rows) >= NUMBER
    assert (whole["next"], whole["next_url"], whole["previous_url"]) == (None,) * 3

    for limit in range(1, len(rows) + 1):
        first = get(caller, path, limit=limit)
        pages = [first, *follow(caller, first, "next_url")]
        back = follow(caller, pages[-1], "previous_url")

        assert first["previous_url"] is None
        assert rows_of(pages) == rows
        assert [len(page["results"]) for page in pages[:-1]] == [limit] * (
            len(pages) - 1
        )
        assert rows_of([*reversed(back), pages[-1]]) == rows
        assert back[-1:] == [] or back[-1]["previous_url"] is None
        assert len(back) == len(pages) - 1


@pytest.mark.parametrize("path", NEWEST_FIRST)
def test_rows_that_come_while_a_list_is_read_move_no_other_row(path: str) -> None:
    LISTS[path](NUMBER)
    caller = program()
    old = get(caller, path)["results"]
    first = get(caller, path, limit=2)
    pages = [first, *follow(caller, first, "next_url")]

    LISTS[path](3)
    back = follow(caller, pages[-1], "previous_url")

    rows = rows_of([*reversed(back), pages[-1]])
    assert get(caller, path)["results"] == rows
    assert len(rows) == len(old) + 3
    assert [row.get("id", row.get("seq")) for row in rows[3:]] == [
        row.get("id", row.get("seq")) for row in old
    ]


@each_list
def test_a_cursor_of_the_release_before_leads_on_from_its_row(path: str) -> None:
    LISTS[path](NUMBER)
    caller = program()
    rows = get(caller, path)["results"]

    for index, row in enumerate(rows[:-1]):
        rest = get(caller, path, cursor=former_cursor(path, row))

        assert rest["results"] == rows[index + 1 :]


def former_cursor(path: str, row: Row) -> str:
    """Sign a cursor as before pages could be read backwards."""
    pk, at = row.get("id", row.get("seq")), None
    name = path.partition("?")[0]
    if name in {"poisons", "problems"}:
        text = row["last_failed_at" if name == "poisons" else "last_seen"]
        at = datetime.fromisoformat(text).isoformat()
    if name in BY_DAY:
        day = date.fromisoformat(row["day"])
        at = datetime.combine(day, time(row.get("hour") or 0), UTC).isoformat()
        pk = Topic.objects.get(name=row["topic"]).pk
    salt = f"poisonweb.cursor.{name.removeprefix('reports/')}"
    salt = salt.replace(".runs", ".report-runs")
    if name == "reports/endpoints":
        salt = "poisonweb.cursor.endpoint-days"
    return signing.dumps([pk, at], salt=salt)


def test_the_addresses_keep_what_the_request_asked_for() -> None:
    add_poisons(3)
    caller = program()

    first = get(caller, "poisons", q='is:open topic:"orders"', limit=1)
    (second, _) = follow(caller, first, "next_url")

    for address in (first["next_url"], second["previous_url"], second["next_url"]):
        query = parse_qs(urlsplit(address).query)
        assert query.pop("cursor")
        assert query == {"q": ['is:open topic:"orders"'], "limit": ["1"]}
    assert first["next"] in unquote(first["next_url"])
    (again,) = follow(caller, second, "previous_url")
    assert again["results"] == first["results"]


def test_the_addresses_lead_to_the_host_that_was_asked(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["poison.example"]
    add_poisons(2)
    caller = program()

    reply = caller.send(
        "GET", "poisons", query={"limit": 1}, headers={"Host": "poison.example"}
    )

    assert reply.json["next_url"].startswith("http://poison.example/api/v1/poisons?")
