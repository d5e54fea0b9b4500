"""The pages of endpoints and deliveries: what they show, refuse and decide."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from apps.audit.models import Entry
from apps.core import clock
from apps.redelivery.call_and_delivery_dataclasses import CallResult
from apps.redelivery.endpoint_and_delivery_choices import AttemptOutcome
from apps.redelivery.endpoint_fields import SETTINGS
from apps.redelivery.models import (
    Attempt,
    CallCount,
    Delivery,
    Endpoint,
    EndpointActivity,
)
from apps.redelivery.services import attempt_results, call_counts
from apps.redelivery.services.request_acceptance import accept
from apps.team.rights import Role
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import get, post, words
from tests.integration.dashboard.test_page_rights_search_and_hostile_texts import (
    HOSTILE_BODIES,
    HOSTILE_TEXT,
)
from tests.integration.redelivery.endpoint_and_delivery_builders import (
    BROKEN,
    DOWN,
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

BAD = HOSTILE_TEXT.encode("utf-8", "surrogatepass")


def stored(of: Endpoint, result: CallResult = BROKEN, **changes: Any) -> Delivery:
    """Accept a request whose first try failed."""
    new = request(result, **changes)
    accept(endpoint=of, new=new, now=NOW)
    return Delivery.objects.get(pk=new.id)


def decided(client: Client, verb: str, *ids: uuid.UUID, **form: str) -> Any:
    return client.post("/deliveries/decide", {"verb": verb, "ids": list(ids), **form})


def test_empty_pages_say_the_next_step(admin: Client, anna: Client) -> None:
    endpoints, deliveries = get(admin, "/endpoints"), get(admin, "/deliveries")

    assert "No endpoint yet" in endpoints
    assert 'href="/endpoints/new"' in endpoints
    assert "Ask an admin to add one" in get(anna, "/endpoints")
    assert "No delivery yet" in deliveries
    assert "No delivery matches" in get(anna, "/deliveries?state=waiting")
    assert "No endpoint matches" in get(anna, "/endpoints?name=x")


def test_the_list_shows_what_waits_and_how_calls_ended(anna: Client) -> None:
    stock = endpoint(breaker_failures=1, breaker_interval=60.0)
    stored(stock)
    endpoint("quiet", is_enabled=False)
    now = clock.now()
    counts = {"succeeded_at_first": 2, "succeeded_later": 1, "failed": 1}
    call_counts.add(endpoint_id=stock.pk, counts=counts, now=now)
    call_counts.add(
        endpoint_id=stock.pk, counts={"failed": 99}, now=now - timedelta(days=2)
    )

    page = get(anna, "/endpoints")
    part = anna.get("/endpoints", headers={"HX-Request": "true"}).content.decode()
    own = get(anna, f"/endpoints/{stock.pk}")

    text = words(page)
    assert "Breaker open" in text
    assert "Disabled" in text
    assert "75 %" in text or "75.0 %" in text
    waiting = 'href="/deliveries?endpoint=stock-quote&amp;state=waiting">'
    assert re.search(re.escape(waiting) + r"1\s*<", page)
    assert "1 failed attempt of 4 calls in the last 24 hours" in words(own)
    assert "The breaker is open since" in words(own)
    assert "<html" not in part
    assert "stock-quote" in part


def test_deliveries_that_an_endpoint_drops_are_counted_as_not_delivered(
    anna: Client,
) -> None:
    stock, now = endpoint(at_end="drop"), clock.now()
    new = request(UNKNOWN, tried_at=now, is_repeatable=False)
    accept(endpoint=stock, new=new, now=now)

    page = get(anna, f"/endpoints/{stock.pk}")

    definition = "ended without a success: in triage, dropped or forwarded"
    assert re.search(rf'{definition}"[^>]*>Not delivered<', page)
    assert "went to triage" not in page
    assert Delivery.objects.get().state == "dropped"
    assert CallCount.objects.get().given_up == 1


def test_the_next_probe_of_an_open_breaker_is_when_a_delivery_is_due(
    anna: Client,
) -> None:
    stock = endpoint(breaker_failures=1)
    stored(stock)
    now = clock.now()

    def page(minutes: int, **changes: Any) -> str:
        """Return the page when the breaker holds for these minutes from now on."""
        Delivery.objects.update(**changes)
        EndpointActivity.objects.update(
            open_until=now + timedelta(minutes=minutes, seconds=30)
        )
        return words(get(anna, f"/endpoints/{stock.pk}"))

    due = now + timedelta(minutes=7, seconds=30)
    for minutes, rest in ((-3, "7m"), (9, "9m")):
        text = page(minutes, due_at=due)
        assert f"only by a probe, the next one in {rest}; the first success" in text
        assert f"Next duein {rest}" in text
    text = page(9, state="dropped", finished_at=now)
    assert "only by a probe, the next one in 9m; the first" in text
    assert "only by a probe, which is the next request; the first" in page(-3)


def test_an_endpoint_is_added_from_a_preset_and_shows_every_setting(
    admin: Client,
) -> None:
    form = form_on(admin.get("/endpoints/new?preset=async-caller"), button="Add the")
    assert form.values["expiry"] == "604800"

    response = form.press(admin, name="quotes", target=TARGET, reason="new")

    added = Endpoint.objects.get()
    assert response["Location"] == f"/endpoints/{added.pk}"
    assert (added.mode, added.retries, added.client_timeout) == ("async", None, 120.0)
    page = words(get(admin, f"/endpoints/{added.pk}"))
    assert "call it at /gateway/quotes" in page
    assert "Expiry7 days" in page
    for setting in SETTINGS:
        assert setting.label in page or setting.name == "is_enabled"
    assert "added the endpoint quotes" in page


def test_help_texts_explain_the_article_and_the_order_of_times(admin: Client) -> None:
    page = words(get(admin, "/endpoints/new?preset=article"))

    assert "10 retries, 11 calls" in page
    assert "the article's retry_count > 10" in page
    assert "longer than an attempt" in page


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"attempt_timeout": "30"}, "Claim of a sender: It is 20 s"),
        ({"interval": "soon"}, "Interval: Give a number"),
        ({"retries": "1.5"}, "Retries: Give a whole number"),
        ({"retries": "1_0"}, "Retries: Give a whole number"),
        ({"retries": "", "expiry": ""}, "Retries: Give a number of retries, or an"),
        ({"interval": ""}, "Interval: Give a number"),
        ({"interval": "nan"}, "Interval: Give a number from 1"),
        ({"expiry": "0"}, "Expiry: Give a number from 1 to 31,622,400"),
        ({"paths": "/a\nb"}, "Paths: A pattern begins with /"),
        ({"at_end": "forward"}, "At the end: Name one topic"),
        ({"mode": "x"}, "Mode: Use one of sync-then-retry"),
        ({"name": "A b"}, "Name: Use up to 100 small letters"),
    ],
)
def test_a_refused_form_names_the_setting_and_keeps_what_was_typed(
    admin: Client, change: dict[str, str], remedy: str
) -> None:
    form = form_on(admin.get("/endpoints/new"), button="Add the endpoint")

    response = form.press(admin, **{"name": "quotes", "target": TARGET, **change})

    page = response.content.decode()
    assert response.status_code == 422
    assert remedy in words(page)
    assert f'value="{TARGET}"' in page
    assert not Endpoint.objects.exists()


def test_a_name_in_use_is_marked_in_the_form(admin: Client) -> None:
    endpoint("quotes")
    form = form_on(admin.get("/endpoints/new"), button="Add the endpoint")

    response = form.press(admin, name="quotes", target=TARGET)

    page = response.content.decode()
    assert response.status_code == 409
    assert re.search(r'<input [^>]*name="name"[^>]*aria-invalid="true"', page)
    assert "Name: There is an endpoint quotes already" in words(page)


def test_a_change_that_somebody_else_overtook_is_refused(admin: Client) -> None:
    stock = endpoint()
    form = form_on(admin.get(f"/endpoints/{stock.pk}/edit"), button="Save the")
    other = form_on(admin.get(f"/endpoints/{stock.pk}/edit"), button="Save the")

    first = form.press(admin, retries="7")
    second = other.press(admin, retries="8")

    assert (first.status_code, second.status_code) == (302, 409)
    assert "was changed meanwhile: look again" in words(second.content.decode())
    stock.refresh_from_db()
    assert (stock.retries, stock.interval, stock.version) == (7, 3.0, 2)
    sentence = "changed retries of the endpoint stock-quote from 2 to 7"
    assert sentence in words(get(admin, f"/endpoints/{stock.pk}"))


def test_an_endpoint_is_disabled_enabled_and_removed_with_a_reason(
    admin: Client,
) -> None:
    stock, path = endpoint(), f"/endpoints/{Endpoint.objects.get().pk}"

    post(admin, f"{path}/enabled", 302, enabled="0", reason="under repair")
    disabled = words(get(admin, path))
    post(admin, f"{path}/enabled", 302, enabled="1")
    question = words(get(admin, f"{path}/remove"))
    delivery = stored(stock)
    refusal_page = get(admin, f"{path}/remove")
    refusal = admin.post(f"{path}/remove")
    Delivery.objects.filter(pk=delivery.pk).delete()
    address = post(admin, f"{path}/remove", 302, reason="moved away")

    assert "disabled the endpoint stock-quote: “under repair”" in disabled
    assert "Enable the endpoint" in disabled
    assert "gateway/stock-quote" in question
    assert "It stays" in refusal_page
    assert refusal.status_code == 409
    assert address == "/endpoints"
    assert not Endpoint.objects.exists()
    last = Entry.objects.latest("seq")
    assert (last.action, last.reason) == ("endpoint.removed", "moved away")


def test_deliveries_are_filtered_by_the_address(anna: Client) -> None:
    waiting = stored(endpoint())
    given_up = stored(endpoint("other"), UNKNOWN, is_repeatable=False)
    day = f"{clock.now():%Y-%m-%d}"

    def ids_on(query: str) -> set[uuid.UUID]:
        page = get(anna, f"/deliveries?{query}")
        rows = {waiting.pk, given_up.pk}
        return {pk for pk in rows if f'href="/deliveries/{pk}"' in page}

    assert ids_on("") == {waiting.pk, given_up.pk}
    assert ids_on("endpoint=stock-quote") == ids_on("state=waiting") == {waiting.pk}
    assert ids_on("cause=unknown") == {given_up.pk}
    assert ids_on(f"since={day}&until={day}") == {waiting.pk, given_up.pk}
    assert ids_on(f"since={clock.now() + timedelta(days=2):%Y-%m-%d}") == set()
    assert ids_on("due=2026-05-18T12:00:03Z") == {waiting.pk}
    wrong = get(anna, "/deliveries?since=noon", 422)
    assert "Since: send a day such as" in words(wrong)
    assert get(anna, "/deliveries?cursor=older.1", 422)


def test_pages_follow_each_other_in_both_directions(anna: Client) -> None:
    stock = endpoint()
    for _ in range(51):
        accept(endpoint=stock, new=request(), now=NOW)
    oldest = Delivery.objects.order_by("pk")[0]

    first = get(anna, "/deliveries")
    _, _, rest = first.partition('rel="next" href="')
    second = get(anna, f"/deliveries{rest.partition(chr(34))[0]}")
    _, _, rest = second.partition('rel="prev" href="')
    back = get(anna, f"/deliveries{rest.partition(chr(34))[0]}")

    assert str(oldest.pk) not in first
    assert second.count("<tr data-key=") == 1
    assert str(oldest.pk) in second
    assert back.count("<tr data-key=") == 50


def test_a_delivery_shows_its_attempts_and_hides_what_is_secret(
    sign_in: SignIn,
) -> None:
    stock = endpoint(retries=1)
    delivery = stored(stock)
    [claimed] = claim(stock, at=3)
    answer = CallResult(
        outcome=AttemptOutcome.FAILED,
        status=503,
        detail="HTTP 503",
        headers=((b"X-Reason", b"sold out"),),
        body=b"<fault>" + b"no quotes " * 1000,
        is_cut=True,
    )
    attempt_results.keep_late_answer(
        delivery=delivery.pk,
        number=1,
        result=replace(answer, body=b"in stock after all"),
        now=later(2),
    )
    # An attempt without an answer in time has no status.
    Attempt.objects.filter(delivery=delivery, number=1).update(status=None)
    end(stock, claimed, answer, at=3.25)
    viewer, reader = sign_in(Role.VIEWER), sign_in(Role.VIEWER, reads_bodies=True)
    delivery.refresh_from_db()

    hidden_page = get(viewer, f"/deliveries/{delivery.pk}")
    revealed_page = reader.post(f"/deliveries/{delivery.pk}/reveal").content.decode()
    message = get(viewer, f"/messages/{delivery.poison}")

    text = words(hidden_page)
    for label in ("Given up", "Attempt 2: HTTP 503", "250 ms", "Late answer"):
        assert label in text
    assert f'href="/messages/{delivery.poison}"' in hidden_page
    assert f'href="/deliveries/{delivery.pk}"' in message
    for secret in ("getQuote", "no quotes", "sold out", "in stock after all"):
        assert secret not in hidden_page
        assert secret in revealed_page
    assert "the answer is longer" in revealed_page
    assert "Headers of the answer" in revealed_page
    assert viewer.post(f"/deliveries/{delivery.pk}/reveal").status_code == 403
    last = Entry.objects.latest("seq")
    assert (last.action, last.subject) == ("body.revealed", f"delivery:{delivery.pk}")
    assert "read the contents of delivery" in words(
        get(viewer, f"/deliveries/{delivery.pk}")
    )


def test_the_body_is_downloaded_byte_for_byte(anna: Client) -> None:
    delivery = stored(endpoint())

    response = anna.post(f"/deliveries/{delivery.pk}/body")

    assert b"".join(response) == b"<quote>\x00\xff</quote>"
    assert response["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("body", HOSTILE_BODIES, ids=lambda body: repr(body[:9]))
def test_hostile_bytes_are_harmless_on_every_page(anna: Client, body: bytes) -> None:
    stock = endpoint()
    answer = CallResult(
        outcome=AttemptOutcome.FAILED,
        status=500,
        detail=HOSTILE_TEXT,
        headers=((BAD, BAD),),
        body=body[:65_536],
    )
    delivery = stored(
        stock, answer, body=body, path=BAD, headers=((BAD, BAD),), caller="key:x"
    )
    own = f"/deliveries/{delivery.pk}"

    pages = [
        get(anna, "/deliveries"),
        get(anna, own),
        anna.post(f"{own}/reveal").content.decode(),
        decided(anna, "retry", delivery.pk).content.decode(),
    ]

    # What is copied is exact, and is text of an attribute.
    for page in (re.sub(r'data-copy="[^"]*"', "", each) for each in pages):
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "\x00" not in page


def test_a_decision_is_shown_first_and_acts_when_it_is_confirmed(
    anna: Client,
) -> None:
    stock = endpoint(at_end="drop")
    waiting, ended = stored(stock), stored(stock, UNKNOWN, is_repeatable=False)
    back = "/deliveries?endpoint=stock-quote"

    question = decided(anna, "give_up", waiting.pk, ended.pk, uuid.uuid4(), back=back)
    before = Delivery.objects.get(pk=waiting.pk).state
    form = form_on(question, button="Give up 1 delivery")
    refusal = form.press(anna, confirm="1")
    done = form.press(anna, confirm="1", reason="sold out")
    list_page = words(get(anna, back))
    restored = form_on(
        decided(anna, "restore", waiting.pk), button="Restore 1 delivery"
    ).press(anna, confirm="1")

    text = words(question.content.decode())
    assert "1 delivery will not be tried again" in text
    assert "1 delivery will be left alone: ✕Dropped" in text
    assert "1 delivery cannot be found here" in text
    assert (before, refusal.status_code) == ("waiting", 422)
    assert "Say why they are given up" in words(refusal.content.decode())
    assert done["Location"] == back
    assert "Gave up on 1 delivery." in list_page
    assert restored["Location"] == "/deliveries"
    page = words(get(anna, f"/deliveries/{waiting.pk}"))
    assert "restored delivery" in page
    assert "gave up on delivery" in page
    assert "“sold out”" in page
    assert "Waiting" in page


@pytest.mark.parametrize(
    "form", [{"verb": "drop"}, {"verb": "retry"}, {"verb": "retry", "ids": ["x"]}]
)
def test_a_decision_about_nothing_is_refused(
    anna: Client, form: dict[str, object]
) -> None:
    post(anna, "/deliveries/decide", 422, **form)


def test_what_an_operator_may_not_do_is_shown_with_the_reason(
    sign_in: SignIn, anna: Client
) -> None:
    stock = endpoint()
    delivery = stored(stock, DOWN)
    viewer = sign_in(Role.VIEWER)

    assert "Your role only reads" in get(viewer, f"/deliveries/{delivery.pk}")
    assert decided(viewer, "retry", delivery.pk, confirm="1").status_code == 403
    assert "brokers:write" in get(anna, f"/endpoints/{stock.pk}")
    for path in ("edit", "remove"):
        get(anna, f"/endpoints/{stock.pk}/{path}", 403)
    get(anna, "/endpoints/999", 404)
    get(anna, f"/deliveries/{uuid.uuid4()}", 404)


def test_ten_rows_need_no_more_queries_than_one(
    anna: Client, django_assert_max_num_queries: Any
) -> None:
    counted = dict[str, list[int]]()
    for number in range(10):
        stored(endpoint(f"stock-{number}"))
        if number in {0, 9}:
            for path in ("/endpoints", "/deliveries"):
                with django_assert_max_num_queries(
                    99, connection=connection
                ) as question:
                    get(anna, path)
                counted.setdefault(path, []).append(len(question.captured_queries))

    for path, (one, ten) in counted.items():
        assert ten <= one, path
