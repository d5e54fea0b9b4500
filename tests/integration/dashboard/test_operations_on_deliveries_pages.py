"""The pages of operations on deliveries: from the list to the preview, and its end."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from django.test import Client

from apps.core import clock
from apps.redelivery.models import Delivery, Endpoint
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Role
from apps.triage.models import Operation
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, post, words
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    BROKEN,
    NOW,
    claim,
    endpoint,
    later,
    request,
)
from tests.triage_operation_runner import run

pytestmark = pytest.mark.django_db


def stored(of: Endpoint, number: int = 3, **changes: Any) -> list[uuid.UUID]:
    news = [request(BROKEN, **changes) for _ in range(number)]
    for new in news:
        accept(endpoint=of, new=new, now=NOW)
    return [new.id for new in news]


def to_preview(client: Client, address: str, button: str, verb: str) -> str:
    """Press a button of the list; return the address of the preview."""
    form = form_on(client.get(address), button=button)
    response = form.press(client, verb=verb)
    assert response.status_code == 302
    location: str = response["Location"]
    return location


def test_what_waits_is_tried_now_from_the_list_to_the_end(anna: Client) -> None:
    stock = endpoint()
    stored(stock, 3)
    stored(endpoint("other"), 2)
    claim(stock, at=100, most=1)
    address = "/deliveries?endpoint=stock-quote&state=waiting"

    preview = to_preview(anna, address, "Try 2 now…", "try_now")
    page = words(get(anna, preview))
    form = form_on(anna.get(preview), button="Try 2 deliveries now")
    done = form.press(anna, "confirm", reason="it is back", rate="40")

    assert "Try 2 deliveries now?" in page
    assert "Filter: endpoint=stock-quote&state=waiting" in page
    assert "2 deliveries selected" in page
    assert "HTTP 503" in page
    assert "target_topic" not in form.visible
    assert "ramped" not in form.visible
    operation = Operation.objects.get()
    assert done["Location"] == f"/operations/{operation.pk}"
    assert (operation.rate, operation.reason) == (40, "it is back")

    running = words(get(anna, f"/operations/{operation.pk}"))
    assert f"Operation {operation.pk}: try 2 deliveries now" in running
    assert "deliveries a second" in running
    anna.post(f"/operations/{operation.pk}/rate", {"rate": "50"})
    assert "send at most 50 deliveries a second" in words(get(anna, "/audit"))
    run(operation, clock.now())
    page = words(get(anna, f"/operations/{operation.pk}"))
    assert "hurried 2 deliveries" in page
    assert "2 of 2" in page
    assert "Hurried 2 deliveries" in words(get(anna, "/operations"))
    assert Delivery.objects.filter(due_at__gt=later(1)).count() >= 2


def test_giving_up_asks_for_a_reason_and_shows_what_became_of_each(
    anna: Client,
) -> None:
    stock = endpoint(at_end="drop")
    ids = stored(stock, 2, path=b"/quotes/IBM")
    preview = to_preview(anna, "/deliveries", "Give up on all that wait…", "give_up")
    form = form_on(anna.get(preview), button="Give up on 2 deliveries")

    refusal = form.press(anna, "confirm")
    assert (refusal.status_code, "Say why" in words(refusal.content.decode())) == (
        422,
        True,
    )
    form.press(anna, "confirm", reason="sold out")
    operation = Operation.objects.get()
    Delivery.objects.filter(pk=ids[0]).delete()
    run(operation, clock.now())

    items = get(anna, f"/operations/{operation.pk}/items")
    assert "Given up" in words(items)
    assert "it was deleted" in words(items)
    assert f'href="/deliveries/{ids[1]}"' in items
    assert f'href="/deliveries/{ids[0]}"' not in items
    page = words(get(anna, f"/operations/{operation.pk}"))
    assert "1 skipped" in page
    assert "Delivery" in page
    own = words(get(anna, f"/deliveries/{ids[1]}"))
    assert "decided to give up on 2 deliveries found by “state=waiting”" in own
    assert "1 given up" in words(get(anna, "/audit"))


def test_dropped_ones_are_restored_from_the_list(anna: Client) -> None:
    stored(endpoint(retries=0, at_end="drop"), 3)
    page = get(anna, "/deliveries?state=dropped")
    assert "Try " not in re.sub(r"<option.*?</option>", "", words(page))

    preview = to_preview(anna, "/deliveries?state=dropped", "Restore 3…", "restore")
    form_on(anna.get(preview), button="Restore 3 deliveries").press(anna, "confirm")
    run(Operation.objects.get(), clock.now())

    assert set(Delivery.objects.values_list("state", flat=True)) == {"waiting"}
    assert "decided to restore 3 deliveries" in words(get(anna, "/audit"))


@pytest.mark.parametrize("address", ["/deliveries?state=delivered", "/deliveries"])
def test_there_is_no_button_where_there_is_nothing_to_act_on(
    anna: Client, address: str
) -> None:
    endpoint()

    assert 'name="of"' not in get(anna, address)


def test_one_who_only_reads_gets_no_button_and_no_preview(sign_in: SignIn) -> None:
    stored(endpoint(), 1)
    viewer = sign_in(Role.VIEWER)

    assert 'name="of"' not in get(viewer, "/deliveries")
    post(viewer, "/operations/preview", 403, of="deliveries", verb="try_now")


@pytest.mark.parametrize(
    "form",
    [
        {"verb": "drop"},
        {"verb": ""},
        {"verb": "try_now", "state": "open"},
        {"verb": "try_now", "since": "x"},
        {"verb": "try_now", "endpoint": "a\x00b"},
        {"verb": "try_now", "endpoint": "a" * 256},
    ],
    ids=str,
)
def test_a_wrong_selection_is_refused(anna: Client, form: dict[str, object]) -> None:
    post(anna, "/operations/preview", 422, of="deliveries", **form)

    assert not Operation.objects.exists()


def test_a_large_give_up_asks_to_type_the_number(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.dashboard.selectors.operation_previews.MANY", 1)
    stored(endpoint(), 2)
    preview = to_preview(anna, "/deliveries", "Give up on all that wait…", "give_up")
    form = form_on(anna.get(preview), button="Give up on 2 deliveries")

    refusal = form.press(anna, "confirm", reason="sold out", typed="3")
    confirmed = form.press(anna, "confirm", reason="sold out", typed="2")

    assert (refusal.status_code, confirmed.status_code) == (422, 302)


def test_a_preview_shows_hostile_filters_as_text(anna: Client) -> None:
    stored(endpoint(), 1)
    response = anna.post(
        "/operations/preview",
        {"of": "deliveries", "verb": "try_now", "endpoint": "<script>alert(1)"},
    )

    page = get(anna, response["Location"])

    assert "<script>alert(1)" not in page
    assert "There is nothing here to act on" in words(page)
