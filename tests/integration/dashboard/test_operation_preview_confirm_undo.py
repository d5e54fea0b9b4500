"""Operations without scripts: select, preview, confirm, watch, undo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.http import HttpResponse
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.models import Broker, Topic
from apps.brokers.services.topics_and_routing_publisher import RoutingPublisher
from apps.core import clock
from apps.poison.models import Poison
from apps.poison.query_language import Query
from apps.poison.states import PoisonState
from apps.redelivery.models import Delivery
from apps.redelivery.services.request_acceptance import accept
from apps.team.models import User
from apps.team.rights import Role
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.services import confirm_and_undo, previews, running
from apps.triage.services.selection_requests import SelectionRequest
from tests.failure_report_builders import drop, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import words
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    BROKEN,
    NOW,
    endpoint,
    request,
)
from tests.triage_operation_runner import counts_of

pytestmark = pytest.mark.django_db(transaction=True)


def look(client: Client, verb: str, **form: Any) -> tuple[Operation, str]:
    """Request a preview as a list does; return the operation and its page."""
    response = client.post("/operations/preview", {"verb": verb, **form})
    assert response.status_code == 302, response.content
    page = client.get(response["Location"])
    assert page.status_code == 200
    return Operation.objects.latest("pk"), page.content.decode()


def confirm(client: Client, operation: Operation, **form: str) -> HttpResponse:
    data: Mapping[str, str] = {
        "token": str(operation.token),
        "reason": "a test",
        **form,
    }
    return client.post("/operations/confirm", data)  # type: ignore[return-value]


def run(operation: Operation) -> None:
    with RoutingPublisher() as publisher:
        running.run(operation_id=operation.pk, publisher=publisher, clock=clock.now)


def ids(*chosen: Poison) -> list[int]:
    return [poison.pk for poison in chosen]


def test_selected_messages_are_sent_after_preview_and_confirmation(
    anna: Client, orders: Topic, now: datetime
) -> None:
    first, second, unselected = poisons(now, 3)

    operation, page = look(anna, "redrive", ids=ids(first, second))
    done = confirm(anna, operation)
    run(operation)
    after = anna.get(done["Location"]).content.decode()

    assert "Requeue 2 messages</button>" in page
    assert (done.status_code, done["Location"]) == (302, f"/operations/{operation.pk}")
    assert "2 of 2" in after
    states = dict(Poison.objects.values_list("pk", "state"))
    assert [states[p.pk] for p in (first, second, unselected)] == ["redriven"] * 2 + [
        "open"
    ]


def test_everything_that_matches_excludes_messages_after_the_preview(
    anna: Client, orders: Topic, now: datetime
) -> None:
    poisons(now, 3)
    operation, _ = look(anna, "redrive", q="topic:orders", everything="1")
    poisons(now, 1)

    page = anna.get(f"/operations/preview?token={operation.token}").content.decode()
    confirm(anna, operation)
    run(operation)

    assert "3 messages selected" in page
    assert "1 newer not included" in page
    assert Poison.objects.open().count() == 1


def test_the_heading_has_the_number_as_soon_as_a_worker_has_selected_them_all(
    anna: Client, orders: Topic
) -> None:
    now = clock.now()
    poisons(now, 2)
    selection = SelectionRequest(verb=Verb.DROP, query=Query.parse("is:open"))
    who = User.objects.get().principal
    operation = previews.preview(selection=selection, principal=who, now=now, at_once=0)
    address = f"/operations/preview?token={operation.token}"

    before = anna.get(address).content.decode()
    previews.take(operation_id=operation.pk, now=now)
    poll = anna.get(address, headers={"HX-Request": "true"}).content.decode()

    assert "Drop all that match?</span>" in before
    assert "0 messages" not in before
    heading = '<span id="question" hx-swap-oob="true">Drop 2 messages?</span>'
    assert heading in poll


def test_an_undo_says_what_it_restores_before_its_messages_are_selected(
    anna: Client, orders: Topic
) -> None:
    now = clock.now()
    dropped, _ = look(anna, "drop", ids=ids(*poisons(now, 2)))
    confirm(anna, dropped)
    run(dropped)
    who = User.objects.get().principal

    undoing = confirm_and_undo.undo(
        operation_id=dropped.pk, principal=who, now=now, at_once=0
    )
    pages = [
        anna.get(address).content.decode()
        for address in (f"/operations/{undoing.pk}", "/operations")
    ]

    for page in pages:
        assert f"estore what operation {dropped.pk} dropped" in page
        assert "all that was dropped" in page
        assert "restore 0 messages" not in page.lower()


def test_a_preview_says_which_messages_will_be_skipped_and_why(
    anna: Client, now: datetime
) -> None:
    dropped, open_poison = poisons(now, 2)
    drop(now, dropped)

    _, page = look(anna, "redrive", ids=ids(dropped, open_poison))

    assert "Requeue 1 message</button>" in page
    assert "dropped: restore it first" in page


@pytest.mark.parametrize("failed_in", ["Sales.Billing", "Sales.Billing@host"])
def test_a_preview_warns_of_messages_that_failed_in_another_queue(
    anna: Client, orders: Topic, now: datetime, failed_in: str
) -> None:
    headers = [("NServiceBus.FailedQ", failed_in.encode())]
    here = [("NServiceBus.FailedQ", b"orders@host")]
    (strays, own) = poisons(now, 2, headers=headers), poisons(now, 1, headers=here)

    operation, page = look(anna, "redrive", ids=ids(*strays, *own))
    form = {"token": str(operation.token), "target_topic": "orders", "act": "look"}
    chosen = anna.post("/operations/confirm", form, follow=True).content.decode()
    _, alone = look(anna, "redrive", ids=ids(*own))
    stray, message = (
        anna.get(f"/messages/{one.pk}").content.decode() for one in (strays[0], own[0])
    )

    assert "2 messages failed in" in page
    assert "Requeue 3 messages" in chosen
    assert failed_in in page
    assert "failed in" not in chosen + alone
    assert "Failed in" in stray
    assert failed_in in stray
    assert "Failed in" not in message


def test_a_preview_counts_the_messages_whose_headers_are_left_out(
    anna: Client, orders: Topic, now: datetime
) -> None:
    rabbit = Broker.objects.create(
        name="rabbit", kind="rabbitmq", url="env:BROKER_NOWHERE"
    )
    Topic.objects.filter(pk=orders.pk).update(broker=rabbit)
    copied = ("CC", b'["audit"]')
    bearing = poisons(now, 2, headers=[copied, ("tenant", b"a")])
    both = poisons(now, 1, headers=[copied, ("BCC", b'["audit"]')])
    without = poisons(now, 1)

    _, page = look(anna, "redrive", ids=ids(*bearing, *both, *without))
    _, single = look(anna, "redrive", ids=ids(*bearing, *without))
    _, other = look(anna, "redrive", ids=ids(*without))

    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert (
        "Header left out: it controls the broker, not the consumer Messages CC 3 BCC 1"
        in text
    )
    assert (
        "The header CC of 2 messages is left out: it controls the broker, not the "
        "consumer." in words(single)
    )
    assert "Header left out" not in single
    assert "left out" not in other


def test_problems_are_taken_as_their_list_showed_them(
    anna: Client, now: datetime
) -> None:
    other = {"type": "Other", "message": "", "traceback": ""}
    one, dropped = poisons(now, 2)
    (two,) = poisons(now, 1, exception=other)
    drop(now, dropped)
    chosen = [one.problem_id, two.problem_id]

    both, _ = look(anna, "redrive", of="problems", q="is:open", ids=chosen)
    single, page = look(anna, "redrive", of="problems", q="is:open", ids=chosen[:1])

    assert set(both.items.values_list("poison_id", flat=True)) == {one.pk, two.pk}
    assert single.query == f"is:open problem:{one.problem_id}"
    assert "Requeue 1 message</button>" in page


def test_crlf_in_a_reason_is_stored_as_lf(anna: Client, now: datetime) -> None:
    longest = "a\r\n" * 500
    (poison,) = poisons(now, 1)
    operation, _ = look(anna, "drop", ids=ids(poison))

    done = confirm(anna, operation, reason=longest)

    assert done.status_code == 302
    entry = Entry.objects.get(action="operation.confirmed")
    assert entry.reason == ("a\n" * 500).strip()


def test_a_session_that_ended_says_so_and_leads_back_to_the_preview(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    operation, _ = look(anna, "drop", ids=ids(poison))
    user = User.objects.get()
    anna.logout()

    redirect = confirm(anna, operation, reason="too old", back="/problems")
    page = anna.get(redirect["Location"]).content.decode()
    again = anna.get(redirect["Location"]).content.decode()
    anna.force_login(user)
    (place,) = parse_qs(urlsplit(redirect["Location"]).query)["next"]
    preview = anna.get(place).content.decode()

    assert "Your session ended: nothing was done." in page
    assert "session ended" not in again
    assert "too old</textarea>" in preview
    assert f'value="{operation.token}"' in preview
    assert 'value="/problems"' in preview


@pytest.mark.parametrize(
    ("referer", "next_url"),
    [
        ("http://testserver/skips/new?topic=a", "/skips/new?topic=a"),
        ("http://elsewhere/skips/new", "/"),
        ("", "/"),
    ],
)
def test_after_a_session_ended_a_form_leads_back_to_its_own_page(
    referer: str, next_url: str
) -> None:
    redirect = Client().post("/skips/new", {}, headers={"referer": referer})

    assert parse_qs(urlsplit(redirect["Location"]).query)["next"] == [next_url]


def test_a_drop_needs_a_reason(anna: Client, now: datetime) -> None:
    operation, _ = look(anna, "drop", ids=ids(*poisons(now, 1)))

    response = confirm(anna, operation, reason="  ")

    assert response.status_code == 422
    assert 'id="reason-wrong"' in response.content.decode()
    assert Poison.objects.open().count() == 1


def test_a_drop_of_more_than_a_thousand_needs_its_number_typed(
    anna: Client, now: datetime
) -> None:
    poisons(now, 1001)
    operation, page = look(anna, "drop", q="topic:orders", everything="1")

    refused = [confirm(anna, operation, typed=typed) for typed in ("", "1000")]
    done = confirm(anna, operation, typed="1,001")

    assert "Type 1001" in page
    assert [response.status_code for response in refused] == [422, 422]
    assert done.status_code == 302


def test_a_drop_is_undone_from_its_own_page(anna: Client, now: datetime) -> None:
    dropped = poisons(now, 2)
    operation, _ = look(anna, "drop", ids=ids(*dropped))
    confirm(anna, operation)
    run(operation)

    page = anna.get(f"/operations/{operation.pk}").content.decode()
    undone = anna.post(f"/operations/{operation.pk}/undo")
    run(Operation.objects.latest("pk"))

    undo = Operation.objects.latest("pk")
    after = anna.get(f"/operations/{operation.pk}").content.decode()
    assert "Undo: restore 2 messages" in page
    assert "Undone by" not in page
    assert f'Undone by</dt><dd><a href="/operations/{undo.pk}">' in after
    assert re.fullmatch(r"/operations/\d+", undone["Location"])
    assert Poison.objects.open().count() == 2


def test_a_preview_can_be_confirmed_only_once(anna: Client, now: datetime) -> None:
    operation, _ = look(anna, "redrive", ids=ids(*poisons(now, 1)))
    confirm(anna, operation)

    again = confirm(anna, operation)
    reloaded = anna.get(f"/operations/preview?token={operation.token}")

    page = again.content.decode()
    assert again.status_code == 409
    assert f"confirmed before, as operation {operation.pk}. Nothing was done:" in page
    assert f'<a href="/operations/{operation.pk}">See what operation' in page
    assert reloaded["Location"] == f"/operations/{operation.pk}"


@pytest.mark.parametrize("spelling", ["{{{}}}", "urn:uuid:{}"])
def test_a_token_of_another_spelling_is_no_preview(
    anna: Client, now: datetime, spelling: str
) -> None:
    operation, _ = look(anna, "redrive", ids=ids(*poisons(now, 1)))

    token = spelling.format(operation.token)
    response = anna.get("/operations/preview", {"token": token})

    assert response.status_code == 404


def test_a_preview_of_another_person_is_refused(
    anna: Client, sign_in: SignIn, now: datetime
) -> None:
    operation, _ = look(anna, "redrive", ids=ids(*poisons(now, 1)))
    boris = sign_in(Role.ADMIN)

    page = boris.get(f"/operations/preview?token={operation.token}")
    response = confirm(boris, operation)

    assert (page.status_code, response.status_code) == (409, 409)
    assert Operation.objects.confirmed().count() == 0


def test_the_same_selection_can_be_sent_to_another_topic(
    anna: Client, orders: Topic, now: datetime
) -> None:
    (poison,) = poisons(now, 1, topic="unknown to any broker")
    operation, _ = look(anna, "redrive", ids=ids(poison))

    form = {"token": str(operation.token), "target_topic": "orders", "act": "look"}
    response = anna.post("/operations/confirm", form)
    moved = Operation.objects.latest("pk")
    confirm(anna, moved, target_topic="orders")
    run(moved)

    poison.refresh_from_db()
    assert "token=" in response["Location"]
    assert (poison.state, poison.moved_to) == (PoisonState.MOVED, orders)


def test_a_requeue_of_an_endpoints_messages_needs_no_broker(anna: Client) -> None:
    accept(endpoint=endpoint(retries=0), new=request(BROKEN), now=NOW)

    operation, page = look(anna, "redrive", ids=ids(Poison.objects.get()))
    confirm(anna, operation)
    run(operation)

    assert "has no broker" not in page
    assert counts_of(operation) == {"sent": 1}
    message = anna.get(f"/messages/{Poison.objects.get().pk}").content.decode()
    deliveries = set(Delivery.objects.values_list("pk", flat=True))
    assert len(deliveries) == 2
    assert all(f'href="/deliveries/{delivery}"' in message for delivery in deliveries)


def test_the_preview_of_an_outboxs_rows_leads_to_where_they_are_sent(
    anna: Client, now: datetime
) -> None:
    _, page = look(anna, "redrive", ids=ids(*poisons(now, 1, topic="outbox/shop")))

    assert 'among the rows of the <a href="/outboxes">outbox</a>' in page


def test_refused_messages_are_listed_with_the_reason(
    anna: Client, now: datetime
) -> None:
    operation, before = look(anna, "redrive", ids=ids(*poisons(now, 1)))
    confirm(anna, operation)
    run(operation)

    page = anna.get(f"/operations/{operation.pk}").content.decode()

    assert "has no broker: its messages will be refused" in before
    assert "Refused and skipped" in page
    assert "no broker" in page


@pytest.mark.parametrize(
    "form",
    [
        {"verb": "redrive"},
        {"verb": "erase", "ids": ["1"]},
        {"verb": "redrive", "ids": ["1; DROP TABLE"]},
        {"verb": "redrive", "ids": [str(2**70)]},
        {"verb": "redrive", "q": "colour:red", "everything": "1"},
        {"verb": "redrive", "ids": ["1"], "of": "topics"},
    ],
)
def test_an_invalid_selection_is_refused(anna: Client, form: dict[str, Any]) -> None:
    response = anna.post("/operations/preview", form)

    assert response.status_code == 422


@pytest.mark.parametrize(
    "path", ["/operations/preview", "/operations/confirm", "/operations/1/undo"]
)
def test_a_viewer_cannot_confirm_an_operation(sign_in: SignIn, path: str) -> None:
    response = sign_in(Role.VIEWER).post(path, {"verb": "redrive", "ids": ["1"]})

    assert response.status_code == 403
    assert "operations:write" in response.content.decode()


def test_a_form_from_elsewhere_is_refused(anna: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = anna.cookies

    response = strict.post("/operations/preview", {"verb": "redrive", "ids": ["1"]})

    assert response.status_code == 403
    assert "out of date" in response.content.decode()


def test_an_order_is_offered_where_it_is_kept(
    anna: Client, orders: Topic, now: datetime
) -> None:
    (ordered_poison,) = poisons(now, 1)
    (nowhere,) = poisons(now, 1, topic="told")
    form = {"verb": "redrive", "back": "/messages"}

    offered, unoffered = (
        anna.post("/operations/preview", {**form, "ids": each.pk}, follow=True)
        for each in (ordered_poison, nowhere)
    )
    token = Operation.objects.get(items__poison=ordered_poison).token
    data = {"token": token, "target_topic": "", "ordered": "1", "act": "look"}
    ordered = anna.post("/operations/confirm", data, follow=True)

    assert 'name="ordered"' in offered.content.decode()
    assert 'name="ordered"' not in unoffered.content.decode()
    assert "They are sent one after the other" in ordered.content.decode()
    assert Operation.objects.latest("pk").ordered


def test_a_refused_preview_says_who_has_its_messages_and_that_another_one_follows(
    anna: Client, now: datetime
) -> None:
    poisons(now, 2)
    first, _ = look(anna, "drop", q="topic:orders", everything="1")
    second, _ = look(anna, "drop", q="topic:orders", everything="1")
    confirm(anna, first, reason="first tab")
    poisons(now, 1)

    late = confirm(anna, second, reason="second tab").content.decode()

    assert "2 skipped, already dropped. Nothing was done:" in late
    assert "this is a new preview of what matches now" in late
    assert "See what operation" not in late


def test_a_browser_keeps_no_preview_that_was_confirmed(
    anna: Client, now: datetime
) -> None:
    operation, _ = look(anna, "redrive", ids=ids(*poisons(now, 1)))
    preview = anna.get(f"/operations/preview?token={operation.token}")

    refused = confirm(anna, operation, target_topic="nowhere")

    for page in (preview, refused):
        assert "no-store" in page["Cache-Control"]
