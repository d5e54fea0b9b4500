"""The pages of outboxes: what they show, refuse and decide."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.capture.intake import services as capture
from apps.core import clock
from apps.core.actor import Actor
from apps.dashboard.selectors import outboxes
from apps.outbox.models import Outbox, OutboxActivity
from apps.outbox.outbox_fields import SETTINGS
from apps.outbox.outbox_row_decisions import RowFilter
from apps.outbox.services import sweeper_activity
from apps.outbox.services.sweeper_activity import NewErrors, SweeperNote
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeping.quarantine_capture import SWEEPER, capture_quarantined
from apps.poison.models import Poison
from apps.team.rights import Principal, Role, Scope
from poisonguard.contract import Cause
from poisonguard.outbox.sweeping.quarantined_rows_as_failure_reports import failure_of
from poisonguard.outbox.sweeping.row_quarantine_and_report import QuarantinedRow, Writer
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_page_rights_search_and_hostile_texts import (
    HOSTILE_TEXT,
)
from tests.integration.outbox.conftest import broker_address, outbox, outbox_database
from tests.integration.outbox.outbox_builders import events, outbox_at
from tests.integration.outbox.test_row_decisions import quarantined
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("broker")]

__all__ = ["broker_address", "outbox", "outbox_database"]

URL = "postgresql://sweeper:sesame@127.0.0.1:1/shop"


def note(outbox: Outbox, *errors: NewErrors, **note: Any) -> None:
    values: dict[str, Any] = {"state": SweeperState.SWEEPING}
    values |= {"counted_at": clock.now()} | note
    sweeper_activity.note(
        outbox_id=outbox.pk, note=SweeperNote(**values), errors=errors, now=clock.now()
    )


def error(message: str = "refused", stack: str = "Traceback") -> NewErrors:
    now = clock.now()
    return NewErrors(
        step="publish",
        kind="Away",
        count=1_234,
        first_at=now,
        last_at=now,
        message=message,
        first_stack=stack,
    )


def new_form(admin: Client) -> dict[str, str]:
    return form_on(admin.get("/outboxes/new"), button="Look at its tables").values


def test_an_empty_list_says_the_next_step(admin: Client, anna: Client) -> None:
    page = get(admin, "/outboxes")

    assert "No outbox yet" in page
    assert 'href="/outboxes/new"' in page
    assert "Ask an admin to add one" in get(anna, "/outboxes")
    assert "No outbox matches" in get(anna, "/outboxes?name=x")


def test_the_list_and_the_page_show_what_the_sweeper_noted(anna: Client) -> None:
    shop = outbox_at(URL)
    note(shop, error(), waiting=12_345, quarantined=3, sent_per_second=55.5)

    listed, page = get(anna, "/outboxes"), get(anna, f"/outboxes/{shop.pk}")

    for text in ("12,345", "55.5", "Sweeping"):
        assert text in words(listed)
        assert text in words(page)
    assert "1,234" in words(page)
    assert "Traceback" in page
    assert "sesame" not in page


def test_counts_that_are_not_of_now_say_when_they_were_made(anna: Client) -> None:
    shop = outbox_at(URL)
    path = f"/outboxes/{shop.pk}"
    OutboxActivity.objects.update(noted_at=clock.now())
    for page in ("/outboxes", path):
        assert 'waiting">0</a>' not in get(anna, page)
        assert 'class="num strong">0<' not in get(anna, page)
    assert "<dt>Counted</dt><dd>not yet</dd>" in get(anna, path)

    earlier = clock.now() - timedelta(minutes=12, seconds=5)
    OutboxActivity.objects.update(waiting=9, counted_at=earlier)
    for page in ("/outboxes", path):
        assert re.search(r"9 (waiting )?counted 12m ago", words(get(anna, page)))

    OutboxActivity.objects.update(counted_at=clock.now())
    assert "9 counted" not in words(get(anna, path))


def test_an_outbox_that_was_just_added_is_not_silent_yet(anna: Client) -> None:
    shop = outbox_at(URL)
    Outbox.objects.update(created_at=clock.now())

    page = words(get(anna, f"/outboxes/{shop.pk}"))

    assert "No sweeper has said anything" not in page
    assert "Silent" not in page


def test_states_that_need_somebody_are_said_above_all(anna: Client) -> None:
    shop = outbox_at(URL)
    path = f"/outboxes/{shop.pk}"

    assert "No sweeper has said anything of this outbox yet" in words(get(anna, path))
    note(shop, state=SweeperState.BROKEN, detail="failed to mark: deadlock")
    assert "failed to mark: deadlock" in words(get(anna, path))
    slowed = {"orders": "consumer billing is 12,000 messages behind"}
    note(shop, state=SweeperState.SLOWED, slowed=slowed)
    assert "billing is 12,000 messages behind" in words(get(anna, path))
    OutboxActivity.objects.update(noted_at=clock.now() - timedelta(minutes=1))
    assert "No sweeper has said anything of this outbox since" in words(get(anna, path))


def test_the_form_shows_what_is_wrong_with_the_tables_before_it_adds_them(
    outbox: OutboxTables, admin: Client
) -> None:
    events()
    outbox.drop_unique_index()
    form = new_form(admin) | {
        "name": "shop",
        "url": f"{outbox.dsn}?sslmode=disable",
        "broker": "events",
    }

    answer = admin.post("/outboxes/new", form)

    page = answer.content.decode()
    assert "Missing unique index" in words(page)
    assert "CREATE UNIQUE INDEX CONCURRENTLY" in page
    assert not Outbox.objects.exists()
    again = form_on(answer, button="Add it all the same")
    assert again.press(admin).status_code == 302
    assert Outbox.objects.get().name == "shop"


def test_a_server_without_tls_is_reached_by_an_option_that_the_form_names(
    outbox: OutboxTables, admin: Client
) -> None:
    events()
    form = new_form(admin) | {"name": "shop", "url": outbox.dsn, "broker": "events"}

    page = words(admin.post("/outboxes/new", form).content.decode())

    assert "server does not support SSL" in page
    assert "end the address with ?sslmode=disable" in page
    without = form | {"url": outbox.dsn.replace("127.0.0.1:", "127.0.0.1:1")}
    page = words(admin.post("/outboxes/new", without).content.decode())
    assert "end the address with" not in page


def test_a_variable_that_is_not_set_is_named_on_the_form(admin: Client) -> None:
    events()
    form = new_form(admin) | {
        "name": "shop",
        "url": "env:BROKER_NOPE",
        "broker": "events",
    }

    answer = admin.post("/outboxes/new", form)

    assert answer.status_code == 422
    assert "BROKER_NOPE is not set in this web process" in words(
        answer.content.decode()
    )


@pytest.mark.parametrize("wrong", ["state=zz", "before=x"])
def test_a_wrong_filter_of_rows_is_said_and_shows_no_row(
    outbox: OutboxTables, anna: Client, wrong: str
) -> None:
    shop = outbox_at(outbox.dsn)
    outbox.put("m-1")

    answer = anna.get(f"/outboxes/{shop.pk}/rows?{wrong}")

    assert answer.status_code == 422
    page = words(answer.content.decode())
    assert f"{wrong.partition('=')[0].capitalize()}: " in page
    assert "m-1" not in page


def test_tables_without_a_fault_are_added_at_once(
    outbox: OutboxTables, admin: Client
) -> None:
    events()
    form = new_form(admin) | {
        "name": "shop",
        "url": f"{outbox.dsn}?sslmode=disable",
        "broker": "events",
    }

    assert admin.post("/outboxes/new", form).status_code == 302

    shop = Outbox.objects.get()
    page = get(admin, f"/outboxes/{shop.pk}/inspect")
    assert "Its tables are as they should be" in words(page)


def test_a_refused_form_keeps_what_was_typed(admin: Client) -> None:
    events()
    form = new_form(admin) | {
        "name": "shop",
        "url": "postgresql://a:b@169.254.169.254/x",
        "broker": "events",
        "window": "77",
        "reason": "because",
    }

    answer = admin.post("/outboxes/new", form)

    assert answer.status_code == 422
    page = answer.content.decode()
    assert 'value="77"' in page
    assert 'value="because"' in page
    assert "link-local or cloud metadata" in words(page)


def test_the_form_names_the_outbox_that_has_the_table(
    outbox: OutboxTables, admin: Client
) -> None:
    outbox_at(outbox.dsn)
    form = new_form(admin) | {
        "name": "second",
        "url": f"{outbox.dsn.replace('127.0.0.1', 'localhost')}?sslmode=disable",
        "broker": "events",
    }

    answer = admin.post("/outboxes/new", form)

    assert answer.status_code == 422
    page = words(answer.content.decode())
    assert "Address: The outbox shop has this table already" in page
    assert Outbox.objects.count() == 1


def test_an_empty_address_stays_as_it_is(admin: Client) -> None:
    shop = outbox_at(URL)
    path = f"/outboxes/{shop.pk}/edit"
    form = form_on(admin.get(path), button="Save the settings")
    assert form.values["url"] == ""

    assert form.press(admin, window="9").status_code == 302

    changed = Outbox.objects.get()
    assert (changed.window, changed.url) == (9, shop.url)
    assert set(form.values) >= {
        each.name for each in SETTINGS if each.name != "is_paused"
    }


def test_it_is_paused_resumed_and_removed_with_a_reason(admin: Client) -> None:
    shop = outbox_at(URL)
    path = f"/outboxes/{shop.pk}"

    admin.post(f"{path}/paused", {"paused": "1", "reason": "a bad release"})
    assert Outbox.objects.get().is_paused
    assert "Resume the sweeper" in get(admin, path)
    admin.post(f"{path}/paused", {"paused": "0"})
    assert not Outbox.objects.get().is_paused
    assert "Its table stays" in words(get(admin, path))
    assert admin.post(f"{path}/remove", {"reason": "over"}).status_code == 302
    assert not Outbox.objects.exists()
    reasons = list(
        Entry.objects.filter(subject="outbox:shop")
        .order_by("seq")
        .values_list("reason", flat=True)
    )
    assert reasons == ["", "a bad release", "", "over"]


def test_the_trail_says_what_was_decided(outbox: OutboxTables, admin: Client) -> None:
    shop = outbox_at(outbox.dsn)
    first, second = quarantined(outbox), quarantined(outbox, "m-2")
    path = f"/outboxes/{shop.pk}"
    admin.post(f"{path}/paused", {"paused": "1"})
    admin.post(f"{path}/edit", form_values(admin, path) | {"window": "9"})
    admin.post(f"{path}/rows/{first}/send", {})
    admin.post(f"{path}/rows/{second}/drop", {})

    page = words(get(admin, path))

    for sentence in (
        "added the outbox shop for events",
        "paused the outbox shop",
        "changed window of the outbox shop from 500 to 9",
        f"let row {first} of the outbox shop be sent",
        f"dropped row {second} of the outbox shop",
    ):
        assert sentence in page


def form_values(admin: Client, path: str) -> dict[str, str]:
    return form_on(admin.get(f"{path}/edit"), button="Save the settings").values


def test_rows_are_filtered_and_decided(outbox: OutboxTables, anna: Client) -> None:
    shop = outbox_at(outbox.dsn)
    row, waiting = quarantined(outbox), outbox.put("m-2")
    path = f"/outboxes/{shop.pk}/rows"

    page = words(get(anna, f"{path}?state=quarantined"))

    assert "two messages under one id" in page
    assert "shop" in page
    assert "m-2" not in page
    question = words(get(anna, f"{path}/{row}/send"))
    assert "Nothing has been done yet" in question
    assert anna.post(f"{path}/{row}/send", {"reason": "r"}).status_code == 302
    assert outbox.count("released_at IS NOT NULL") == 1
    assert anna.post(f"{path}/{row}/drop", {}).status_code == 409
    assert "is not quarantined: it is waiting" in words(
        get(anna, f"{path}/{waiting}/drop")
    )


def quarantined_row(
    row_id: int, now: datetime, *, topic: str = "orders"
) -> QuarantinedRow:
    """Build a row that was quarantined, as the sweeper reports it."""
    return QuarantinedRow(
        row_id=row_id,
        producer="shop",
        message_id=f"m-{row_id}",
        topic=topic,
        headers=(),
        body=b"body",
        body_size=4,
        body_digest=None,
        attempts=1,
        cause=Cause.MANUAL,
        reason="two messages under one id",
        quarantined_at=now,
        writer=Writer("bob", "nightly.sh", "10.1.2.3", "71", "12:00"),
    )


def test_the_page_names_the_writers_of_quarantined_rows(
    outbox: OutboxTables, anna: Client
) -> None:
    shop = outbox_at(outbox.dsn)
    path = f"/outboxes/{shop.pk}"
    assert "No row has been quarantined yet" in words(get(anna, path))
    Topic.objects.create(name="orders", native_name="orders", broker=events())
    for number, topic in ((105, "orders"), (107, "receipts")):
        row = quarantined_row(number, clock.now(), topic=topic)
        capture_quarantined(outbox=shop, rows=[row], now=clock.now())
    note(shop, quarantined=2)

    page = words(get(anna, path))

    # A row of a registered topic is a message of that topic.
    for number in (105, 107):
        assert (
            f"m-{number} two messages under one id. Row {number}, written by:"
            " user bob, application nightly.sh"
        ) in page
    assert "Decide about 2 rows" in page


@pytest.mark.parametrize(
    ("state", "breaker"),
    [(SweeperState.BROKEN, "open"), (SweeperState.SWEEPING, "closed")],
)
def test_the_page_has_the_breaker(
    anna: Client, state: SweeperState, breaker: str
) -> None:
    shop = outbox_at(URL)
    note(shop, state=state)

    page = get(anna, f"/outboxes/{shop.pk}")

    assert f"Breaker</a></dt><dd>{breaker}</dd>" in page


def test_rows_that_are_not_there_say_why(outbox: OutboxTables, anna: Client) -> None:
    shop = outbox_at(outbox.dsn)

    page = get(anna, f"/outboxes/{shop.pk}/rows")
    filtered = get(anna, f"/outboxes/{shop.pk}/rows?state=sent")

    assert "No row yet" in page
    assert "No row matches" in filtered
    assert "Clear the filter" in filtered


@pytest.mark.parametrize("number", [7, 2**63 - 1, 10**30])
def test_a_row_of_any_number_that_is_not_there_is_not_found(
    outbox: OutboxTables, anna: Client, number: int
) -> None:
    shop = outbox_at(outbox.dsn)

    page = words(get(anna, f"/outboxes/{shop.pk}/rows/{number}/send"))

    assert f"Row {number}" in page
    assert "did not answer" not in page


def test_a_message_of_an_outbox_elsewhere_names_its_row_and_the_command(
    outbox: OutboxTables, anna: Client
) -> None:
    shop, now = outbox_at(outbox.dsn), clock.now()
    row = quarantined_row(107, now)
    capture_quarantined(outbox=shop, rows=[row], now=now)
    registered = Poison.objects.get()
    report = failure_of(row, outbox="billing.public")
    capture.capture(members=[report.to_wire()], principal=SWEEPER, now=now)
    elsewhere = Poison.objects.exclude(pk=registered.pk).get()
    command = "python -m poisonguard.sweeper --settle sent --rows 107"

    page = words(get(anna, f"/messages/{elsewhere.pk}"))

    assert "It is row 107 of the outbox billing.public" in page
    assert command in page
    assert command not in get(anna, f"/messages/{registered.pk}")


def test_a_message_has_the_decisions_about_its_row(
    outbox: OutboxTables, anna: Client
) -> None:
    shop, now = outbox_at(outbox.dsn), clock.now()
    row_ids = [quarantined(outbox), quarantined(outbox, "m-2")]
    for row_id in row_ids:
        row = quarantined_row(row_id, now)
        capture_quarantined(outbox=shop, rows=[row], now=now)
    first, second = Poison.objects.order_by("pk")

    assert anna.post(f"/outboxes/{shop.pk}/rows/{row_ids[0]}/drop").status_code == 302

    page = get(anna, f"/messages/{first.pk}")
    assert f"dropped row {row_ids[0]} of the outbox shop" in words(page)
    assert "There is no decision about it yet" not in page
    assert 'href="/audit?subject=outbox:shop"' in page
    other = get(anna, f"/messages/{second.pk}")
    assert "There is no decision about it yet" in other


def test_the_page_has_no_rows_of_topics_that_its_reader_does_not_see(
    outbox: OutboxTables,
) -> None:
    shop = outbox_at(outbox.dsn)
    Topic.objects.create(name="orders", native_name="orders", broker=shop.broker)
    outbox.put("m-1", topic="orders")
    row_id = outbox.put("m-2", topic="receipts")
    reader = Principal(
        actor=Actor("user:b"), scopes=frozenset(Scope), topics=("outbox/shop",)
    )

    listed = outboxes.rows(shop, RowFilter(), reader)

    assert [row.row_id for row in listed.rows] == [row_id]


def test_rows_of_a_database_that_is_away_say_so(anna: Client) -> None:
    shop = outbox_at(URL)

    assert "did not answer" in words(get(anna, f"/outboxes/{shop.pk}/rows"))


def test_viewers_decide_nothing(
    outbox: OutboxTables, anna: Client, sign_in: SignIn
) -> None:
    shop = outbox_at(outbox.dsn)
    row = quarantined(outbox)
    viewer = sign_in(Role.VIEWER)

    page = get(viewer, f"/outboxes/{shop.pk}/rows")

    assert f"/rows/{row}/send" not in page
    assert viewer.post(f"/outboxes/{shop.pk}/rows/{row}/send").status_code == 403
    assert viewer.post(f"/outboxes/{shop.pk}/paused").status_code == 403
    assert viewer.get(f"/outboxes/{shop.pk}/edit").status_code == 403


def test_hostile_texts_are_shown_as_text(outbox: OutboxTables, anna: Client) -> None:
    shop = outbox_at(outbox.dsn)
    text = HOSTILE_TEXT.encode("utf-8", "replace").decode().replace("\0", "")
    row = outbox.put(text[:255] or "x", topic=text[:255])
    outbox.execute(
        "UPDATE poisonguard_outbox SET quarantined_at = now(),"
        " quarantine_reason = %s WHERE row_id = %s",
        [text, row],
    )
    note(shop, error(text, text), state=SweeperState.BROKEN, detail=text)

    for path in ("", "/rows", f"/rows/{row}/drop", f"/rows/{row}/send"):
        page = get(anna, f"/outboxes/{shop.pk}{path}")
        assert "<script>alert" not in page
