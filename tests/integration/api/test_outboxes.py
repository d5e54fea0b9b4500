"""The calls about outboxes: settings, what sweepers note, rows and decisions."""

from __future__ import annotations

import json
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core import clock
from apps.outbox.models import Outbox, OutboxActivity
from apps.outbox.services import sweeper_activity
from apps.outbox.services.sweeper_activity import NewErrors, SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.team.rights import Scope
from tests.integration.api.schema_checking_client import Caller, Reply, program
from tests.integration.outbox.conftest import broker_address, outbox, outbox_database
from tests.integration.outbox.outbox_builders import events, outbox_at
from tests.integration.outbox.test_row_decisions import QUARANTINE, quarantined
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("broker")]

__all__ = ["broker_address", "outbox", "outbox_database"]

URL = "postgresql://sweeper:sesame@127.0.0.1/shop?sslmode=disable"


@pytest.fixture
def operator() -> Caller:
    return program(Scope.BROKERS_READ, Scope.POISONS_READ, Scope.OPERATIONS_WRITE)


def patch(caller: Caller, path: str, **changes: object) -> Reply:
    return caller.send("PATCH", path, raw=json.dumps(changes).encode())


def note(outbox: Outbox, state: SweeperState = SweeperState.SWEEPING) -> None:
    now = clock.now()
    error = NewErrors(
        step="publish",
        kind="Away",
        count=3,
        first_at=now - timedelta(hours=1),
        last_at=now,
        message="refused",
        first_stack="Traceback",
    )
    sweeper_activity.note(
        outbox_id=outbox.pk,
        note=SweeperNote(state=state, counted_at=now, waiting=7, newly_sent=5),
        errors=[error],
        now=now,
    )


def test_an_outbox_is_added_read_changed_and_removed(admin: Caller) -> None:
    events()
    added = admin.post(
        "outboxes", {"name": "shop", "url": URL, "broker": "events", "most_lag": 9}
    )

    assert added.status == 201
    assert added.json["address"] == "kept, sealed"
    assert added.json["most_lag"] == 9
    assert added.json["activity"]["state"] == "waiting"
    assert "sesame" not in json.dumps(added.json)
    path = f"outboxes/{added.json['id']}"
    assert added.response["Location"] == f"/api/v1/{path}"
    assert patch(admin, path, is_paused=True, version=1).json["is_paused"] is True
    assert patch(admin, path, window=9, version=1).status == 409
    assert admin.get("outboxes").json["results"][0]["version"] == 2
    assert admin.send("DELETE", path, raw=b"{}").status == 200
    assert admin.get(path).status == 404


def test_wrong_settings_name_their_member(admin: Caller) -> None:
    events()
    usual = {"name": "shop", "url": URL, "broker": "events"}
    for member, value in [
        ("url", "mysql://a:b@127.0.0.1/x"),
        ("url", "postgresql://a:b@169.254.169.254/x"),
        ("broker", "other"),
        ("window", 10_001),
        ("sent_ids_days", 1),
        ("name", "A b"),
    ]:
        refused = admin.post("outboxes", {**usual, member: value})

        assert refused.status == 422, (member, value)
        assert member in json.dumps(refused.json)
    assert not Outbox.objects.exists()


def test_a_variable_that_is_not_set_is_named_with_who_needs_it(admin: Caller) -> None:
    events()
    new = {"name": "shop", "url": "env:BROKER_NOPE", "broker": "events"}

    answers = [admin.post("outboxes", new)]
    registered = outbox_at("postgresql://sweeper:x@127.0.0.1/shop")
    answers.append(patch(admin, f"outboxes/{registered.pk}", url=new["url"]))

    for refused in answers:
        assert refused.status == 422
        (wrong,) = refused.json["errors"]
        assert wrong["pointer"] == "/url"
        assert "BROKER_NOPE is not set in this web process" in wrong["detail"]
        assert "manage.py sweeper" in wrong["detail"]


def test_a_table_that_another_outbox_has_is_refused_by_any_name_of_its_server(
    outbox: OutboxTables, admin: Caller
) -> None:
    outbox_at(outbox.dsn)
    second = outbox_at(outbox.dsn, "second", schema="other")
    same = outbox.dsn.replace("127.0.0.1", "localhost")
    assert same != outbox.dsn
    new = {"name": "third", "url": f"{same}?sslmode=disable", "broker": "events"}

    for refused, member in (
        (admin.post("outboxes", new), "url"),
        (patch(admin, f"outboxes/{second.pk}", schema=""), "schema"),
        (patch(admin, f"outboxes/{second.pk}", url=new["url"], schema=""), "url"),
    ):
        assert refused.status == 422
        (error,) = refused.json["errors"]
        assert error["pointer"] == f"/{member}"
        assert "the outbox shop has this table already" in error["detail"]
    assert admin.post("outboxes", {**new, "schema": "third"}).status == 201


def test_tables_of_one_address_are_told_apart_by_what_their_server_says(
    outbox: OutboxTables, admin: Caller
) -> None:
    outbox_at(outbox.dsn)
    outbox.execute("CREATE SCHEMA other")
    role = f"reader_{uuid4().hex}"
    outbox.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    outbox.execute(f"ALTER ROLE {role} SET search_path = other")
    outbox.execute(f"GRANT USAGE ON SCHEMA other TO {role}")
    outbox.execute("CREATE TABLE other.poisonguard_outbox ()")
    parts = urlsplit(outbox.dsn)
    address = parts._replace(netloc=f"{role}:x@{parts.netloc.rpartition('@')[2]}")
    new = {"url": f"{address.geturl()}?sslmode=disable", "broker": "events"}
    try:
        answer = admin.post("outboxes", {"name": "second", **new})
    finally:
        outbox.execute("DROP SCHEMA other CASCADE")
        outbox.execute(f"DROP ROLE {role}")

    assert answer.status == 201


def test_one_table_is_recognised_whatever_time_zone_a_role_has(
    outbox: OutboxTables, admin: Caller
) -> None:
    outbox_at(outbox.dsn)
    role = f"reader_{uuid4().hex}"
    outbox.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    outbox.execute(f"ALTER ROLE {role} SET timezone = 'Asia/Kathmandu'")
    outbox.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
    parts = urlsplit(outbox.dsn)
    address = parts._replace(netloc=f"{role}:x@{parts.netloc.rpartition('@')[2]}")
    new = {"url": f"{address.geturl()}?sslmode=disable", "broker": "events"}
    try:
        answer = admin.post("outboxes", {"name": "second", **new})
    finally:
        outbox.execute(f"REVOKE USAGE ON SCHEMA public FROM {role}")
        outbox.execute(f"DROP ROLE {role}")

    assert answer.status == 422
    assert "has this table already" in answer.json["errors"][0]["detail"]


def test_what_sweepers_note_is_shown_with_errors(admin: Caller) -> None:
    registered = outbox_at("postgresql://sweeper:x@127.0.0.1/shop")
    note(registered)
    note(registered)

    answer = admin.get(f"outboxes/{registered.pk}").json

    assert answer["activity"]["state"] == "sweeping"
    assert (answer["activity"]["waiting"], answer["activity"]["sent_count"]) == (7, 10)
    [error] = answer["sweeper_errors"]
    assert (error["step"], error["kind"], error["count"]) == ("publish", "Away", 6)
    OutboxActivity.objects.update(noted_at=clock.now() - timedelta(minutes=1))
    silent = admin.get(f"outboxes/{registered.pk}").json
    assert silent["activity"]["state"] == "silent"


def test_a_consumer_of_any_name_slows_a_topic(admin: Caller) -> None:
    registered = outbox_at("postgresql://sweeper:x@127.0.0.1/shop")
    slowed = {"orders": "consumer \0\ud800 is 9 messages behind"}
    sweeper_activity.note(
        outbox_id=registered.pk,
        note=SweeperNote(state=SweeperState.SLOWED, slowed=slowed),
        errors=[],
        now=clock.now(),
    )

    answer = admin.get(f"outboxes/{registered.pk}").json

    assert answer["activity"]["state"] == "slowed"
    assert answer["activity"]["slowed"]["orders"].endswith("9 messages behind")


def test_rows_are_listed_and_decided_once(
    outbox: OutboxTables, operator: Caller
) -> None:
    registered = outbox_at(outbox.dsn)
    first, second = quarantined(outbox), quarantined(outbox, "m-2")
    path = f"outboxes/{registered.pk}/rows"

    listed = operator.get(path, state="quarantined").json

    assert [row["row_id"] for row in listed["results"]] == [second, first]
    assert listed["next_before"] is None
    assert listed["results"][0]["writer_application"] == "shop"
    assert operator.get(path, before=str(second)).json["results"][0]["row_id"] == first
    assert operator.get(path, state="lost").status == 422
    assert operator.get(path, before="-1").status == 422
    released = operator.post(f"{path}/{first}/send", {"reason": "right"})
    assert released.json["state"] == "waiting"
    assert operator.post(f"{path}/{first}/send", {}).status == 409
    assert operator.post(f"{path}/{second}/drop", {}).json["state"] == "dropped"
    assert Entry.objects.filter(subject="outbox:shop").count() == 3


def test_rows_of_a_topic_that_a_key_is_not_for_are_none_of_its_own(
    outbox: OutboxTables,
) -> None:
    registered = outbox_at(outbox.dsn)
    for name in ("orders", "invoices"):
        Topic.objects.create(
            name=name, native_name=f"{name}-queue", broker=registered.broker
        )
    Topic.objects.create(name="stock", native_name="other-queue")
    hidden, *others = (
        outbox.put(f"m-{topic}", topic=topic)
        for topic in ("orders-queue", "invoices-queue", "other-queue")
    )
    for row_id in (hidden, *others):
        outbox.execute(QUARANTINE, [row_id])
    rows = f"outboxes/{registered.pk}/rows"
    scopes = (Scope.BROKERS_READ, Scope.POISONS_READ, Scope.OPERATIONS_WRITE)
    some = program(*scopes, topics=("outbox/*", "invoices"))

    for path in (rows, f"{rows}?message_id=m-orders", f"{rows}?topic=orders-queue"):
        assert hidden not in [r["row_id"] for r in some.get(path).json["results"]]
    assert {r["row_id"] for r in some.get(rows).json["results"]} == {*others}
    for act in ("send", "drop"):
        refused = some.post(f"{rows}/{hidden}/{act}", {})
        assert refused.status == 404
        assert f"There is no row {hidden} of shop" in json.dumps(refused.json)
        assert some.post(f"{rows}/9999/{act}", {}).status == 404
    assert outbox.column("dropped_at", hidden) is None
    assert some.post(f"{rows}/{others[0]}/drop", {}).status == 200
    everyone = program(*scopes)
    assert len(everyone.get(rows).json["results"]) == 3
    assert everyone.post(f"{rows}/{hidden}/drop", {}).status == 200


def test_only_a_row_that_waits_is_due(outbox: OutboxTables, operator: Caller) -> None:
    registered = outbox_at(outbox.dsn)
    for name in ("waits", "was-sent"):
        outbox.put(name)
    outbox.execute(
        "UPDATE poisonguard_outbox SET sent_at = now() WHERE message_id = 'was-sent'"
    )
    quarantined(outbox)

    listed = operator.get(f"outboxes/{registered.pk}/rows").json["results"]

    is_due = {row["message_id"]: row["due_at"] is not None for row in listed}
    assert is_due == {"waits": True, "was-sent": False, "m-1": False}


def test_a_database_that_is_away_is_a_503(operator: Caller) -> None:
    registered = outbox_at("postgresql://sweeper:x@127.0.0.1:1/shop")

    answer = operator.get(f"outboxes/{registered.pk}/rows")

    assert answer.status == 503
    assert "shop did not answer" in json.dumps(answer.json)


def test_findings_name_what_is_missing_with_the_sql_that_mends_it(
    outbox: OutboxTables, operator: Caller
) -> None:
    outbox.drop_unique_index()
    registered = outbox_at(outbox.dsn)

    answer = operator.get(f"outboxes/{registered.pk}/findings").json

    [finding] = answer["findings"]
    assert finding["kind"] == "missing unique index"
    assert "CREATE UNIQUE INDEX CONCURRENTLY" in finding["sql"]
    assert finding["is_blocking"] is False


def test_rights_are_asked_for(admin: Caller) -> None:
    registered = outbox_at("postgresql://sweeper:x@127.0.0.1/shop")
    path = f"outboxes/{registered.pk}"

    assert program(Scope.POISONS_READ).get(path).status == 403
    assert program(Scope.BROKERS_READ).get(f"{path}/rows").status == 403
    assert program(Scope.BROKERS_READ).post(f"{path}/rows/1/send", {}).status == 403
    assert patch(program(Scope.BROKERS_READ), path, window=1).status == 403
    hidden = program(Scope.BROKERS_READ, topics=["orders"])
    assert hidden.get(path).status == 404
    assert hidden.get("outboxes").json["results"] == []
