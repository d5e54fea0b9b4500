"""The list of outboxes, the page of one, and the forms that add and change it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.core import clock
from apps.outbox.models import Outbox, OutboxActivity
from apps.outbox.outbox_fields import SETTINGS
from apps.outbox.sweeper_and_row_states import SweeperState
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, words
from tests.integration.outbox.conftest import broker_address, outbox, outbox_database
from tests.integration.outbox.outbox_builders import (
    AWAY_URL,
    events,
    new_errors,
    note,
    outbox_at,
)
from tests.sdk.outbox_sweeping.outbox_tables import OutboxTables

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("broker")]

__all__ = ["broker_address", "outbox", "outbox_database"]


def new_form(admin: Client) -> dict[str, str]:
    return form_on(admin.get("/outboxes/new"), button="Look at its tables").values


def test_an_empty_list_says_the_next_step(admin: Client, anna: Client) -> None:
    page = get(admin, "/outboxes")

    assert "No outbox yet" in page
    assert 'href="/outboxes/new"' in page
    assert "Ask an admin to add one" in get(anna, "/outboxes")
    assert "No outbox matches" in get(anna, "/outboxes?name=x")


def test_the_list_and_the_page_show_what_the_sweeper_noted(anna: Client) -> None:
    shop = outbox_at(AWAY_URL)
    note(shop, new_errors(), waiting=12_345, quarantined=3, sent_per_second=55.5)

    listed, page = get(anna, "/outboxes"), get(anna, f"/outboxes/{shop.pk}")

    for text in ("12,345", "55.5", "Sweeping"):
        assert text in words(listed)
        assert text in words(page)
    assert "1,234" in words(page)
    assert "Traceback" in page
    assert "sesame" not in page


def test_counts_that_are_not_of_now_say_when_they_were_made(anna: Client) -> None:
    shop = outbox_at(AWAY_URL)
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
    shop = outbox_at(AWAY_URL)
    Outbox.objects.update(created_at=clock.now())

    page = words(get(anna, f"/outboxes/{shop.pk}"))

    assert "No sweeper has said anything" not in page
    assert "Silent" not in page


def test_states_that_need_somebody_are_said_above_all(anna: Client) -> None:
    shop = outbox_at(AWAY_URL)
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
    shop = outbox_at(AWAY_URL)
    path = f"/outboxes/{shop.pk}/edit"
    form = form_on(admin.get(path), button="Save the settings")
    assert form.values["url"] == ""

    assert form.press(admin, window="9").status_code == 302

    changed = Outbox.objects.get()
    assert (changed.window, changed.url) == (9, shop.url)
    assert set(form.values) >= {
        each.name for each in SETTINGS if each.name != "is_paused"
    }


def test_the_removal_says_how_many_rows_wait(admin: Client) -> None:
    shop = outbox_at(AWAY_URL)
    path = f"/outboxes/{shop.pk}/remove"

    before = words(get(admin, path))
    earlier = clock.now() - timedelta(minutes=12, seconds=5)
    note(shop, waiting=12_345, quarantined=3, counted_at=earlier)
    page = get(admin, path)

    assert before.count("not counted yet") == 2
    for state, number in (("waiting", "12,345"), ("quarantined", "3")):
        assert f'href="/outboxes/{shop.pk}/rows?state={state}">{number}</a>' in page
    assert "12,345 counted 12m ago" in words(page)
    assert "carried out there by hand" in words(page)


def test_it_is_paused_resumed_and_removed_with_a_reason(admin: Client) -> None:
    shop = outbox_at(AWAY_URL)
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


@pytest.mark.parametrize(
    ("state", "breaker"),
    [(SweeperState.BROKEN, "open"), (SweeperState.SWEEPING, "closed")],
)
def test_the_page_has_the_breaker(
    anna: Client, state: SweeperState, breaker: str
) -> None:
    shop = outbox_at(AWAY_URL)
    note(shop, state=state)

    page = get(anna, f"/outboxes/{shop.pk}")

    assert f"Breaker</a></dt><dd>{breaker}</dd>" in page
