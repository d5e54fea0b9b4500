"""The rows of an outbox and their messages on pages."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.brokers.models import Topic
from apps.capture.intake import services as capture
from apps.core import clock
from apps.core.actor import Actor
from apps.dashboard.selectors import outboxes
from apps.outbox.outbox_row_decisions import RowFilter
from apps.outbox.sweeper_and_row_states import SweeperState
from apps.outbox.sweeping.quarantine_capture import SWEEPER, capture_quarantined
from apps.poison.models import Poison
from apps.team.rights import Principal, Role, Scope
from poisonguard.outbox.sweeping.quarantined_rows_as_failure_reports import failure_of
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.test_page_rights_search_and_hostile_texts import (
    HOSTILE_TEXT,
)
from tests.integration.outbox.conftest import broker_address, outbox, outbox_database
from tests.integration.outbox.outbox_builders import (
    AWAY_URL,
    events,
    new_errors,
    note,
    outbox_at,
    quarantined_row,
)
from tests.integration.outbox.test_row_decisions import quarantined
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("broker")]

__all__ = ["broker_address", "outbox", "outbox_database"]


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
    shop = outbox_at(AWAY_URL)

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
    note(shop, new_errors(text, text), state=SweeperState.BROKEN, detail=text)

    for path in ("", "/rows", f"/rows/{row}/drop", f"/rows/{row}/send"):
        page = get(anna, f"/outboxes/{shop.pk}{path}")
        assert "<script>alert" not in page
