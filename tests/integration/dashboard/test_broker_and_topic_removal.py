"""A removal needs a review page, and removes only what that page listed."""

from __future__ import annotations

import re
from datetime import datetime
from html import unescape

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.models import Broker, Topic
from apps.capture.models import Lane
from apps.dashboard.forms import removal_tokens
from apps.team.rights import Role
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, post, words

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>\u202e'\"&"


@pytest.fixture
def ours() -> Broker:
    return Broker.objects.create(
        name="ours", kind="redis_streams", url="env:BROKER_OURS"
    )


def observed(broker: Broker, *names: str) -> list[Topic]:
    topics = [
        Topic.objects.create(
            name=name,
            native_name=name,
            broker=broker,
            dead_letter_queue=f"{name}-poison",
        )
        for name in names
    ]
    Lane.objects.bulk_create(Lane(topic=topic, depth=3) for topic in topics)
    return topics


def token_on(page: str) -> str:
    (token,) = re.findall(r'name="token" value="([^"]+)"', page)
    return str(token)


def test_a_broker_goes_after_a_look_at_all_that_goes_with_it(
    admin: Client, ours: Broker
) -> None:
    observed(ours, "orders", "bills")
    path = f"/brokers/{ours.pk}/remove"

    linked = get(admin, f"/brokers/{ours.pk}")
    page = get(admin, path)
    place = post(admin, path, 302, token=token_on(page), reason=" the wrong one ")

    assert f'href="{path}"' in linked
    assert f'action="{path}"' not in linked
    assert "The broker and its address, 2 topics, and what lanes saw" in words(page)
    assert "orders-poison" in page
    assert "Remove ours and 2 topics" in words(page)
    assert "-X DELETE" in page
    assert (place, Broker.objects.count(), Topic.objects.count()) == ("/brokers", 0, 0)
    assert Entry.objects.get(action="broker.removed").reason == "the wrong one"


def test_a_broker_without_topics_is_removed(admin: Client, ours: Broker) -> None:
    path = f"/brokers/{ours.pk}/remove"

    page = get(admin, path)
    post(admin, path, 302, token=token_on(page))
    audit = words(get(admin, "/audit"))

    assert "The broker and its address." in words(page)
    assert "removed the broker ours with 0 topics" in audit
    assert not Broker.objects.exists()


def test_where_something_is_on_record_the_page_says_of_what_and_what_to_do(
    admin: Client, ours: Broker, now: datetime
) -> None:
    orders, _, _ = observed(ours, "orders", "bills", "mail")
    poisons(now, 1)
    path = f"/brokers/{ours.pk}/remove"

    page = get(admin, path)
    refused = post(admin, path, 409, token=token_on(page))
    place = post(admin, path, 302, token=token_on(page), others="1")

    assert "It stays, with 1 topic" in words(page)
    assert f'href="/topics/{orders.pk}"' in page
    assert "orders messages" in words(page)
    assert "Pause the lane of a topic" in words(page)
    assert "Remove 2 topics" in words(page)
    assert "Remove ours" not in words(page).partition("Remove ours?")[2]
    assert "is not what you looked at" in words(refused)
    assert place == f"/brokers/{ours.pk}"
    assert "Removed: 2." in words(get(admin, place))
    assert list(Topic.objects.values_list("name")) == [("orders",)]


def test_a_topic_with_records_since_the_review_stays(
    admin: Client, ours: Broker, now: datetime
) -> None:
    (orders,) = observed(ours, "orders")
    paths = (f"/brokers/{ours.pk}/remove", f"/topics/{orders.pk}/remove")
    tokens = [token_on(get(admin, path)) for path in paths]
    poisons(now, 1)

    pages = [
        post(admin, path, 409, token=token)
        for path, token in zip(paths, tokens, strict=True)
    ]

    assert all("orders (messages) has something on record" in p for p in pages)
    assert all("It stays" in page for page in pages)
    assert Topic.objects.exists()


@pytest.mark.parametrize("change", ["none", "other", "old", "another's", "forged"])
def test_a_removal_without_a_valid_review_is_refused(
    admin: Client,
    sign_in: SignIn,
    ours: Broker,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    observed(ours, "orders")
    other = Broker.objects.create(name="b", kind="redis_streams", url="env:BROKER_B")
    path = f"/brokers/{ours.pk}/remove"
    token = token_on(get(admin, path))
    asks = admin
    if change == "none":
        token = ""
    elif change == "other":
        token = token_on(get(admin, f"/brokers/{other.pk}/remove"))
    elif change == "old":
        monkeypatch.setattr(removal_tokens, "TOKEN_MAX_AGE_SECONDS", -1)
    elif change == "another's":
        asks = sign_in(Role.ADMIN, reads_bodies=True)
    else:
        token = token[:-1] + ("A" if token[-1] != "A" else "B")

    page = post(asks, path, 409, token=token)

    assert "is not what you looked at" in words(page)
    assert token_on(page)
    assert Topic.objects.exists()


def test_a_review_of_one_broker_is_not_valid_for_another(
    admin: Client, ours: Broker
) -> None:
    other = Broker.objects.create(name="b", kind="redis_streams", url="env:BROKER_B")
    token = token_on(get(admin, f"/brokers/{other.pk}/remove"))

    post(admin, f"/brokers/{ours.pk}/remove", 409, token=token)

    assert Broker.objects.count() == 2


def test_a_new_topic_since_the_review_needs_another_review(
    admin: Client, ours: Broker
) -> None:
    observed(ours, "orders")
    path = f"/brokers/{ours.pk}/remove"
    token = token_on(get(admin, path))
    observed(ours, "bills")

    page = post(admin, path, 409, token=token, reason="why")
    post(admin, path, 302, token=token_on(page))

    assert "Remove ours and 2 topics" in words(page)
    assert 'value="why"' in page
    assert not Topic.objects.exists()


def test_a_topic_goes_after_a_look_at_it(admin: Client, ours: Broker) -> None:
    orders, _ = observed(ours, "orders", "bills")
    path = f"/topics/{orders.pk}/remove"

    linked = get(admin, f"/topics/{orders.pk}")
    page = get(admin, path)
    place = post(admin, path, 302, token=token_on(page))

    assert f'href="{path}"' in linked
    assert "Nothing of it is on record here" in words(page)
    assert "observe 3 dead letters" in words(page)
    assert '"name": "orders"' in unescape(page)
    assert place == f"/brokers/{ours.pk}"
    assert "Removed: 1." in words(get(admin, place))
    assert list(Topic.objects.values_list("name")) == [("bills",)]


def test_a_topic_known_by_report_goes_too(admin: Client) -> None:
    topic = Topic.objects.create(name="told", native_name="told")
    path = f"/topics/{topic.pk}/remove"

    page = get(admin, path)

    assert "known by report only" in page
    assert post(admin, path, 302, token=token_on(page)) == "/topics"


def test_a_topic_on_record_says_so_and_offers_nothing(
    admin: Client, ours: Broker, now: datetime
) -> None:
    (orders,) = observed(ours, "orders")
    poisons(now, 1)

    page = get(admin, f"/topics/{orders.pk}/remove")

    assert "On record here: messages." in words(page)
    assert "Pause its lane" in words(page)
    assert 'name="token"' not in page


def test_a_reason_that_is_too_long_is_told_beside_it(
    admin: Client, ours: Broker
) -> None:
    path = f"/brokers/{ours.pk}/remove"
    token = token_on(get(admin, path))

    page = post(admin, path, 422, token=token, reason="x" * 2_001)

    assert re.search(r'name="reason"[^>]*aria-invalid="true"', page)
    assert re.search(r'name="reason"[^>]*maxlength="2000"', page)
    assert Broker.objects.exists()


def test_hostile_names_are_shown_as_they_are(admin: Client) -> None:
    broker = Broker.objects.create(
        name=HOSTILE, kind="redis_streams", url="env:BROKER_X"
    )
    (topic,) = observed(broker, HOSTILE)

    pages = [
        get(admin, f"/brokers/{broker.pk}/remove"),
        get(admin, f"/topics/{topic.pk}/remove"),
    ]

    assert [page for page in pages if "<script>alert" in page] == []
    assert all("U+202E" in page for page in pages)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_who_may_not_write_brokers_removes_none(
    sign_in: SignIn, ours: Broker, role: Role
) -> None:
    (orders,) = observed(ours, "orders")
    client = sign_in(role)
    paths = (f"/brokers/{ours.pk}/remove", f"/topics/{orders.pk}/remove")

    codes = [client.get(p).status_code for p in paths]
    codes += [client.post(p).status_code for p in paths]
    linked = [get(client, f"/brokers/{ours.pk}"), get(client, f"/topics/{orders.pk}")]

    assert codes == [403] * 4
    assert not any("/remove" in page for page in linked)
    assert Topic.objects.exists()
