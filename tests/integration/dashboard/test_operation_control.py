"""The page of an operation controls it, and lists what became of each message."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.test import Client
from redis import Redis

from apps.brokers.models import Topic
from apps.capture.models import Lane, LaneState
from apps.dashboard.selectors import operation_previews
from apps.poison.query_language import Query
from apps.poison.services import redrive_confirmations_by_token
from apps.team.rights import Principal, Role
from apps.triage.models import Operation
from apps.triage.operation_states import Verb
from apps.triage.ramps import Ramp
from apps.triage.services import control
from apps.triage.services.control import PAUSE
from tests.failure_report_builders import capture, failure, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.triage_operation_runner import (
    confirm,
    counts_of,
    preview,
    run,
    sent_messages,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(orders: Topic, operator: Principal, now: datetime) -> Operation:
    poisons(now, 3)
    return confirm(operator, preview(operator, now), now)


def page(client: Client, operation: Operation, rest: str = "") -> str:
    response = client.get(f"/operations/{operation.pk}{rest}")
    assert response.status_code == 200
    return response.content.decode()


def press(client: Client, operation: Operation, act: str) -> str:
    address = f"/operations/{operation.pk}/control"
    response = client.post(address, {"act": act}, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def test_a_running_operation_can_be_paused_resumed_and_cancelled_from_its_page(
    anna: Client, running: Operation, now: datetime
) -> None:
    first = page(anna, running)
    paused = press(anna, running, "pause")
    resumed = press(anna, running, "resume")
    cancelling = press(anna, running, "cancel")
    run(running, now)
    cancelled = page(anna, running)

    assert 'value="pause"' in first
    assert 'value="resume"' not in first
    assert 'value="resume"' in paused
    assert "no other operation can take it" in paused
    assert 'value="pause"' in resumed
    assert "Being cancelled" in cancelling
    assert 'value="pause"' not in cancelling
    assert "Cancelled" in cancelled
    assert 'value="cancel"' not in cancelled


def test_the_page_of_what_its_ramp_has_paused_offers_to_resume_it_without_the_ramp(
    anna: Client, orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    operation = confirm(operator, preview(operator, now, ramp=Ramp(steps=(1,))), now)
    Operation.objects.filter(pk=operation.pk).update(
        state="paused", paused_because="1 of 1 were refused"
    )

    html = page(anna, operation)
    resumed = press(anna, operation, "resume-without-ramp")
    operation.refresh_from_db()

    assert "Resume it, and the ramp begins again with its first step" in html
    assert "Resume without the ramp" in html
    assert "Resume without the ramp" not in resumed
    assert (operation.state, operation.ramp) == ("queued", None)


def test_a_drop_holds_nothing_back_from_others_while_it_is_paused(
    anna: Client, operator: Principal, orders: Topic, now: datetime
) -> None:
    poisons(now, 3)
    dropping = confirm(operator, preview(operator, now, verb=Verb.DROP), now)

    paused = press(anna, dropping, "pause")
    cancelling = press(anna, dropping, "cancel")

    assert "Paused. Other operations can take what is waiting." in paused
    assert "may still be sent" not in paused
    assert "Being cancelled: what is waiting stays as it is." in cancelling


def test_what_is_over_cannot_be_paused(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    run(running, now)

    response = anna.post(f"/operations/{running.pk}/control", {"act": "pause"})

    assert response.status_code == 409
    assert "is done already" in response.content.decode()


def test_a_viewer_sees_no_buttons_and_may_not_press_them(
    sign_in: SignIn, running: Operation
) -> None:
    viewer = sign_in(Role.VIEWER)

    html = page(viewer, running)
    response = viewer.post(f"/operations/{running.pk}/control", {"act": "cancel"})

    assert 'value="pause"' not in html
    assert response.status_code == 403
    running.refresh_from_db()
    assert running.state == "queued"


def test_the_rate_is_set_on_the_page_and_an_impossible_one_is_refused(
    anna: Client, running: Operation
) -> None:
    address = f"/operations/{running.pk}/rate"
    anna.post(address, {"rate": "7"})
    refused = anna.post(address, {"rate": "0"})
    running.refresh_from_db()
    slow = running.rate
    anna.post(address, {"rate": ""})
    running.refresh_from_db()

    assert (slow, refused.status_code, running.rate) == (7, 422, None)


@pytest.mark.parametrize("rate", ["0", "-1", "1e9", "1000000000", "fast"])
def test_an_impossible_rate_is_explained_beside_its_field_on_the_page(
    anna: Client, running: Operation, rate: str
) -> None:
    address = f"/operations/{running.pk}/rate"
    refused = anna.post(address, {"rate": rate})
    reloaded = anna.get(address)

    html = refused.content.decode()
    assert refused.status_code == 422
    assert "Give a whole number from 1 to 100,000, or none for no limit." in html
    assert f'name="rate" inputmode="numeric" value="{rate}"' in html
    assert f'hx-get="/operations/{running.pk}"' in html
    assert 'value="pause"' in html
    assert (reloaded.status_code, reloaded["Location"]) == (302, address[:-5])


def test_the_title_follows_the_state(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    address, htmx = f"/operations/{running.pk}", {"HX-Request": "true"}

    first = anna.get(address, headers=htmx).content.decode()
    run(running, now)
    poll = anna.get(address, headers=htmx).content.decode()

    assert "<title>Requeue: queued" in first
    assert "<title>Requeue: done" in poll


def test_what_a_cancelled_operation_did_not_act_on_is_not_waiting(
    anna: Client, running: Operation, now: datetime
) -> None:
    before = page(anna, running)
    press(anna, running, "cancel")
    run(running, now)

    listed = anna.get("/operations").content.decode()
    assert "</span>Waiting</span>" in before
    for html in (page(anna, running), page(anna, running, "/items"), listed):
        assert "</span>Untouched</span>" in html
        assert "</span>Waiting</span>" not in html


def test_the_badge_says_which_operations_are_paused(
    anna: Client, operator: Principal, running: Operation, now: datetime
) -> None:
    def badge() -> str:
        html = page(anna, running)
        words = re.search(r'<a class="running"[^>]*>(.*)</a>', html)
        assert words
        return re.sub("<[^>]+>", "", words[1])

    at_first = badge()
    press(anna, running, "pause")
    paused = badge()
    poisons(now, 1, topic="other")
    confirm(operator, preview(operator, now, query=Query.parse("topic:other")), now)

    assert (at_first, paused) == ("1 operation running", "1 operation paused")
    assert badge() == "2 operations, 1 paused"


def test_the_form_of_the_rate_leaves_the_page_when_the_operation_has_ended(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    address, htmx = f"/operations/{running.pk}", {"HX-Request": "true"}

    first = page(anna, running)
    meanwhile = anna.get(address, headers=htmx).content.decode()
    run(running, now)
    poll = anna.get(address, headers=htmx).content.decode()

    assert 'id="rate-form" method="post"' in first
    assert "rate-form" not in meanwhile
    assert '<div id="rate-form" hx-swap-oob="outerHTML"></div>' in poll
    assert "rate-form" not in page(anna, running)


def test_a_step_that_does_not_exist_is_refused(
    anna: Client, running: Operation
) -> None:
    response = anna.post(f"/operations/{running.pk}/control", {"act": "explode"})

    assert response.status_code == 422


def answer(stream: Redis, now: datetime, *, failing: int) -> None:
    for place, fields in enumerate(sent_messages(stream)):
        token = fields[b"x-poisonweb-redrive"].decode()
        if place == failing:
            capture(now, failure(now, bookmark=f"{place}-9", redrive=token))
        else:
            redrive_confirmations_by_token.confirm(tokens=[(token, "orders")], now=now)


def test_every_count_leads_to_its_messages_and_the_worst_comes_first(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    run(running, now)
    answer(stream, now, failing=1)

    html = page(anna, running)
    came_back = page(anna, running, "/items?standing=recurred")
    everything = page(anna, running, "/items")
    one_by_one = page(anna, running, "/items?after=1")

    assert "1 of 3 came back." in html
    assert f'href="/operations/{running.pk}/items?standing=recurred"' in html
    assert came_back.count('href="/messages/') == 1
    assert everything.count('href="/messages/') == 3
    assert one_by_one.count('href="/messages/') == 1


@pytest.mark.parametrize("rest", ["?standing=exploded", "?standing=%00"])
def test_an_unknown_standing_is_refused(
    anna: Client, running: Operation, rest: str
) -> None:
    response = anna.get(f"/operations/{running.pk}/items{rest}")

    assert response.status_code == 422


def test_those_that_came_back_are_previewed_again(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    run(running, now)
    answer(stream, now, failing=0)

    offered = page(anna, running)
    again = anna.post(
        f"/operations/{running.pk}/retry", {"standing": ["recurred"]}, follow=True
    )
    nothing = anna.post(f"/operations/{running.pk}/retry", {})

    assert "Retry these" in offered
    assert "Requeue 1 message?" in again.content.decode()
    assert nothing.status_code == 422


def is_listed(html: str, operation: Operation) -> bool:
    return f'<td class="what"><a href="/operations/{operation.pk}"' in html


def test_a_paused_operation_is_among_those_that_need_a_person(
    anna: Client, running: Operation, operator: Principal, now: datetime
) -> None:
    before = anna.get("/operations?show=needs-you").content.decode()
    control.change_state(
        PAUSE, operation_id=running.pk, reason="", principal=operator, now=now
    )
    after = anna.get("/operations?show=needs-you").content.decode()

    assert (is_listed(before, running), is_listed(after, running)) == (False, True)


def test_an_acknowledged_operation_needs_a_person_no_more(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    run(running, now)
    answer(stream, now, failing=1)

    offered = page(anna, running)
    needing = anna.get("/operations?show=needs-you").content.decode()
    address = f"/operations/{running.pk}/acknowledge"
    acknowledged = anna.post(address, follow=True).content.decode()
    quiet = anna.get("/operations?show=needs-you").content.decode()

    assert f'action="{address}"' in offered
    assert f'action="{address}"' not in acknowledged
    assert "Acknowledged</dt><dd>by user:" in acknowledged
    assert "1 of 3 came back." in acknowledged
    assert (is_listed(needing, running), is_listed(quiet, running)) == (True, False)


def test_all_listed_operations_are_acknowledged_at_once(
    anna: Client, running: Operation, stream: Redis, now: datetime
) -> None:
    run(running, now)
    answer(stream, now, failing=1)

    needing = anna.get("/operations?show=needs-you").content.decode()
    ids = re.findall(r'name="ids" value="(\d+)"', needing)
    quiet = anna.post("/operations/acknowledge", {"ids": ids}, follow=True)
    wrong = anna.post("/operations/acknowledge", {"ids": ["1; DROP"]})

    assert "Acknowledge 1 operation below" in needing
    assert ids == [str(running.pk)]
    assert "1 operation acknowledged." in quiet.content.decode()
    assert not is_listed(quiet.content.decode(), running)
    assert wrong.status_code == 422


@pytest.mark.parametrize(
    ("query", "listed"),
    [
        *(("?q=a+test", True), ("?q=no+such", False), ("?q=%23{pk}", True)),
        *(("?q=%00", False), ("?show=running", True), ("?show=done", False)),
        *(("?q=99999999999999999999", False), ("?show=exploded", True)),
    ],
)
def test_operations_are_searched_by_number_and_words(
    anna: Client, running: Operation, query: str, listed: bool
) -> None:
    response = anna.get("/operations" + query.format(pk=running.pk))

    assert response.status_code == 200
    assert is_listed(response.content.decode(), running) == listed


def test_open_messages_are_given_back_from_the_page_of_their_topic(
    anna: Client, orders: Topic, stream: Redis, now: datetime
) -> None:
    poisons(now, 2)
    offered = anna.get(f"/topics/{orders.pk}").content.decode()
    look = anna.post("/operations/preview", {"give_back": "orders"}, follow=True)
    operation = Operation.objects.latest("pk")
    anna.post(
        "/operations/confirm", {"token": str(operation.token), "reason": "not ours"}
    )
    run(operation, now)

    assert "Give the open messages back" in offered
    assert "as captured and in the order of their capture" in look.content.decode()
    assert operation.verb == Verb.GIVE_BACK
    assert counts_of(operation) == {"moved": 2}


def test_a_preview_says_that_the_broker_is_away_and_how_long_the_rate_takes(
    anna: Client, orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 3)
    Lane.objects.update_or_create(
        topic=orders, defaults={"state": LaneState.AWAY, "seen_at": now}
    )
    operation = preview(operator, now, rate=2)

    detail = operation_previews.preview_detail(operation, operator, now=now)

    assert orders.broker
    assert detail.brokers_away == (orders.broker.name,)
    assert detail.seconds == 2


def test_a_preview_says_that_the_broker_of_a_target_without_a_lane_is_away(
    anna: Client, orders: Topic, operator: Principal, now: datetime
) -> None:
    poisons(now, 1, topic="bare")
    Topic.objects.create(name="parking", native_name="parking", broker=orders.broker)
    Lane.objects.filter(topic=orders).update(state=LaneState.AWAY, seen_at=now)
    query = Query.parse("topic:bare")
    parked = preview(operator, now, query=query, target_topic="parking")
    stays = preview(operator, now, query=query)

    away = [
        operation_previews.preview_detail(operation, operator, now=now).brokers_away
        for operation in (parked, stays)
    ]

    assert orders.broker
    assert away == [(orders.broker.name,), ()]
