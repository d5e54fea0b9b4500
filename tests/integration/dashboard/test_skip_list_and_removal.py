"""The pages of skips: list, history and removal."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Absent
from apps.dashboard.keyset_pagination import PAGE_SIZE
from apps.dashboard.presentation.moments import utc
from apps.dashboard.selectors import skips
from apps.poison import skip_counts, skip_expiry_and_pruning
from apps.poison.models import Skip
from apps.poison.skip_matching import Matcher
from apps.team.rights import Principal, Role, Scope
from poisonguard.contract import AppliedSkip
from tests.failure_report_builders import capture, failure, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.skips_and_their_form import (
    HOSTILE,
    RULE,
    skip,
)
from tests.skip_builders_and_list_mirror import ANNA, bookmark, rule

pytestmark = pytest.mark.django_db

EU = Principal(actor=Actor.key("eu"), scopes=frozenset(Scope), topics=("orders.eu",))


def test_the_page_of_a_renewed_skip_says_who_renewed_it_and_what_it_was(
    anna: Client, now: datetime
) -> None:
    matcher = rule(header="tenant", equals="acme")
    expiry = now + timedelta(days=3)
    olga = Principal(actor=Actor.user("olga"), scopes=frozenset(Scope))
    existing = skip(now, matcher, reason="it kills", expires_at=expiry)
    skip(now, matcher, reason="for good", principal=olga)
    skip(now, matcher, reason="until the repair", expires_at=expiry)

    page = words(get(anna, f"/skips/{existing.pk}"))

    topic = "of the topic orders, which"
    assert f"olga renewed skip {existing.pk} by rule" in page
    assert f"{topic} anna had added until {utc(expiry)}: “for good”" in page
    assert f"anna renewed skip {existing.pk} by rule" in page
    assert f"{topic} olga had added until a person removes it: “until the" in page


def test_the_list_tells_all_about_a_skip(anna: Client, now: datetime) -> None:
    existing = skip(
        now - timedelta(hours=3),
        matcher=rule(header="tenant", equals="acme"),
        consumer_group="billing",
        handler_version="2026.11.20",
        expires_at=now + timedelta(days=2, hours=1),
    )
    report = AppliedSkip(
        skip=existing.pk,
        consumer_group="billing",
        client_name="billing-1",
        count=12,
        last_at=now - timedelta(minutes=5),
        report=uuid.uuid4(),
    )
    skip_counts.count_applied(reports=[report], principal=ANNA, now=now)

    page = words(get(anna, "/skips"))
    alone = words(get(anna, f"/skips/{existing.pk}"))

    facts = ("Active", "header tenant is acme", "orders", "billing", "it kills")
    assert [fact for fact in facts if fact not in page or fact not in alone] == []
    assert [
        fact for fact in ("user:anna", "3h", "2d", "12", "5m") if fact not in page
    ] == []
    assert "12 messages, the last one 5m ago" in alone
    assert "2026.11.20" in alone


def test_an_automatic_skip_is_marked(anna: Client, now: datetime) -> None:
    topic = Topic.objects.create(name="orders", native_name="orders", replays=True)
    capture(now, failure(now))
    automatic = Skip.objects.get(topic=topic, is_automatic=True)

    page = get(anna, "/skips")

    assert '<span class="badge">automatic</span>' in page
    assert "Made by itself" in get(anna, f"/skips/{automatic.pk}")


def test_an_automatic_skip_of_one_version_leads_to_one_for_all(
    anna: Client, now: datetime
) -> None:
    topic = Topic.objects.create(name="orders", native_name="orders", replays=True)
    capture(now, failure(now, bookmark="1&=0", handler_version="1.2"))
    automatic = Skip.objects.get(topic=topic)

    page = get(anna, f"/skips/{automatic.pk}")
    link = unescape(page.partition('href="/skips/new?topic=')[2].partition('"')[0])
    form = get(anna, f"/skips/new?topic={link}")

    assert "1.2: another version tries the message again" in words(page)
    assert 'name="value" value="1&amp;=0"' in form
    assert 'name="consumer_group" value="billing"' in form
    assert 'name="handler_version" value=""' in form


def test_a_removed_skip_is_history_with_who_and_why(
    anna: Client, now: datetime
) -> None:
    removed = skip(now)
    remaining = skip(now)

    done = anna.post(f"/skips/{removed.pk}/remove", {"reason": "fixed in 2.1"})

    active, history = get(anna, "/skips"), get(anna, "/skips?everything=1")
    alone = words(get(anna, f"/skips/{removed.pk}"))
    assert (done.status_code, done["Location"]) == (302, "/skips")
    assert (f"/skips/{removed.pk}" in active, f"/skips/{remaining.pk}" in active) == (
        False,
        True,
    )
    assert (f"/skips/{removed.pk}" in history, f"/skips/{remaining.pk}" in history) == (
        True,
        False,
    )
    assert "fixed in 2.1" in history
    assert [
        fact
        for fact in ("Removed", "user:operatorTrue", "fixed in 2.1")
        if fact not in alone
    ] == []
    entry = Entry.objects.get(action="skip.removed")
    assert (entry.subject, entry.reason) == (f"skip:{removed.pk}", "fixed in 2.1")


def test_a_skip_whose_time_is_up_is_expired_wherever_it_is_shown(
    anna: Client, now: datetime
) -> None:
    existing = skip(now - timedelta(days=2), expires_at=now - timedelta(days=1))

    before = get(anna, "/skips")
    skip_expiry_and_pruning.expire(now=now)
    after = get(anna, "/skips?everything=1")

    assert [
        ">Expired<" in page and f"/skips/{existing.pk}" in page
        for page in (before, after)
    ] == [True, True]
    assert "No skip" in get(anna, "/skips")


def test_the_list_is_narrowed_to_a_topic_or_a_pattern(
    anna: Client, now: datetime
) -> None:
    here, there = skip(now, topic="orders.eu"), skip(now, topic="payments")

    def listed(query: str) -> list[bool]:
        page = get(anna, f"/skips?topic={query}")
        return [f'href="/skips/{each.pk}"' in page for each in (here, there)]

    assert listed("orders.eu") == [True, False]
    assert listed("orders.*") == [True, False]
    assert listed("") == [True, True]
    assert listed("%00") == [True, True]
    assert "No skip matches" in get(anna, "/skips?topic=nowhere")


def test_an_empty_list_says_what_would_fill_it(anna: Client) -> None:
    assert "Consumers handle every message" in get(anna, "/skips")
    assert "No skip has ended yet" in get(anna, "/skips?everything=1")


def test_the_pages_of_the_list_hold_every_skip_once(
    anna: Client, now: datetime
) -> None:
    added = [skip(now).pk for _ in range(2 * PAGE_SIZE + 1)]

    listed: list[int] = []
    path = "/skips"
    while path:
        page = get(anna, path)
        listed += [
            int(n) for n in re.findall(r'class="what"><a href="/skips/(\d+)"', page)
        ]
        older = re.findall(r'rel="next" href="([^"]+)"', page)
        path = f"/skips{unescape(older[0])}" if older else ""

    assert listed == added[::-1]


def test_a_list_asks_the_database_as_often_for_many_skips_as_for_one(
    anna: Client, now: datetime, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        skip(now, topic=f"orders.{number}")

    with django_assert_max_num_queries(16):
        get(anna, "/skips")


def test_skips_of_invisible_topics_are_not_found(now: datetime) -> None:
    existing = skip(now)
    filters = skips.SkipFilter()

    result = skips.find(filters, None, EU, now=now)

    assert (result.rows, result.topics) == ([], [])
    with pytest.raises(Absent):
        skips.one(existing.pk, EU, now=now)


def test_a_viewer_sees_disabled_buttons_with_the_reason(
    sign_in: SignIn, now: datetime
) -> None:
    existing = skip(now)
    (poison,) = poisons(now, 1, bookmark="b-1")
    skip(now, bookmark("b-1"))
    boris = sign_in(Role.VIEWER)

    pages = [
        get(boris, path)
        for path in ("/skips", f"/skips/{existing.pk}", f"/messages/{poison.pk}")
    ]

    assert ['aria-disabled="true"' in page for page in pages] == [True] * 3
    assert ["skips:write" in page for page in pages] == [True] * 3
    assert [f"/skips/{existing.pk}/remove" in page for page in pages] == [False] * 3


@pytest.mark.parametrize("path", ["/skips/new", "/skips/1/remove"])
def test_a_viewer_cannot_change_skips(
    sign_in: SignIn, now: datetime, path: str
) -> None:
    skip(now)

    response = sign_in(Role.VIEWER).post(path, {**RULE, "act": "add", "reason": "x"})

    assert response.status_code == 403
    assert b"skips:write" in response.content
    assert Skip.objects.active().count() == 1


@pytest.mark.parametrize("path", ["/skips/new", "/skips/1/remove"])
def test_a_form_from_elsewhere_changes_nothing(
    anna: Client, now: datetime, path: str
) -> None:
    skip(now)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = anna.cookies

    response = strict.post(path, {**RULE, "act": "add", "reason": "x"})

    assert response.status_code == 403
    assert Skip.objects.active().count() == 1


@pytest.mark.parametrize(
    "path", ["/skips", "/skips/new", "/skips/1", "/skips/1/remove"]
)
def test_a_stranger_is_asked_to_sign_in(path: str) -> None:
    response = Client().get(path)

    assert response["Location"] == f"/sign-in?next={path}"


@pytest.mark.parametrize(
    "path", ["/skips/99", "/skips/99999999999999999999999999", "/skips/-1"]
)
def test_what_is_not_there_is_not_found(anna: Client, path: str) -> None:
    assert "There is nothing here" in get(anna, path, 404)


def test_a_removal_leads_to_no_other_site(anna: Client, now: datetime) -> None:
    existing = skip(now)
    form = {"reason": "x", "back": "https://evil.example/"}

    response = anna.post(f"/skips/{existing.pk}/remove", form)

    assert response["Location"] == "/messages"


def test_removing_twice_is_removing_once(anna: Client, now: datetime) -> None:
    existing = skip(now)

    done = [
        anna.post(f"/skips/{existing.pk}/remove", {"reason": why}) for why in ("a", "b")
    ]

    assert [response.status_code for response in done] == [302, 302]
    assert Entry.objects.get(action="skip.removed").reason == "a"


@pytest.mark.parametrize(
    "matcher",
    [
        bookmark("\0" * 100_000),
        Matcher.parse({"kind": "message_id", "value": HOSTILE + "\ud800"}),
        rule(header=HOSTILE[:200], equals=HOSTILE + "\0\ud800"),
        rule(pointer="/" + HOSTILE, equals=HOSTILE + "\0"),
        rule(pointer="", equals=None),
        rule(pointer="/a", equals=10**900),
    ],
)
def test_no_matcher_breaks_a_page(
    anna: Client, now: datetime, matcher: Matcher
) -> None:
    removed = skip(
        now, matcher=matcher, reason=HOSTILE + "\0", consumer_group=HOSTILE[:200]
    )
    anna.post(f"/skips/{removed.pk}/remove", {"reason": HOSTILE})
    again = skip(now, matcher, reason=HOSTILE, handler_version="\u202e" * 200)

    paths = (
        "/skips",
        "/skips?everything=1",
        f"/skips/{removed.pk}",
        f"/skips/{again.pk}",
    )
    pages = [anna.get(path) for path in paths]

    assert [page.status_code for page in pages] == [200] * 4
    assert all(b"<script>alert" not in page.content for page in pages)
    assert all("\u202e".encode() not in page.content for page in pages)
    assert max(len(page.content) for page in pages) < 100_000


def test_a_poll_gets_only_the_live_part(anna: Client, now: datetime) -> None:
    existing = skip(now)

    part = anna.get("/skips", headers={"hx-request": "true"}).content.decode()

    assert "<html" not in part
    assert f'href="/skips/{existing.pk}"' in part


def test_the_key_and_the_link_lead_to_the_list(anna: Client) -> None:
    assert '<a href="/skips" data-go="s" aria-current="page">' in get(anna, "/skips")
