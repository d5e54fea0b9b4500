"""The skip pages: list, preview, add, remove and audit."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.core.errors import Absent, Invalid
from apps.dashboard.forms import new_skip as skip_forms
from apps.dashboard.forms.new_skip import SkipForm
from apps.dashboard.keyset_pagination import PAGE_SIZE
from apps.dashboard.presentation.moments import utc
from apps.dashboard.selectors import skips
from apps.poison import skip_addition_and_removal, skip_counts
from apps.poison.models import Poison, Skip
from apps.poison.skip_matching import Matcher
from apps.team.rights import Principal, Role, Scope
from apps.triage.models import Operation
from poisonguard.contract import AppliedSkip
from tests.failure_report_builders import capture, failure, poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, words

pytestmark = pytest.mark.django_db

ANNA = Principal(actor=Actor.user("anna"), scopes=frozenset(Scope))
EU = Principal(actor=Actor.key("eu"), scopes=frozenset(Scope), topics=("orders.eu",))
HOSTILE = "</td><script>alert(1)</script>\u202e\x1b[31m" + "A" * 500
RULE = {"by": "header", "where": "tenant", "value": "acme", "topic": "orders"}


def of_tenant(now: datetime, tenant: str, number: int = 1) -> list[Poison]:
    return poisons(now, number, headers=[("tenant", tenant.encode())])


def skip(now: datetime, **changes: Any) -> Skip:
    """Add a skip; by default of a bookmark on orders."""
    topic, _ = Topic.objects.get_or_create(
        name=changes.pop("topic", "orders"),
        defaults={"native_name": str(uuid.uuid4())},
    )
    matcher = {"kind": "bookmark", "value": str(uuid.uuid4())}
    matcher |= changes.pop("matcher", {})
    facts = {"consumer_group": None, "reason": "it kills", "principal": ANNA, **changes}
    addition = skip_addition_and_removal.add(
        topic=topic, matcher=Matcher.parse(matcher), now=now, **facts
    )
    return addition.skip


def rule(**fields: object) -> dict[str, object]:
    return {"kind": "rule", "value": fields}


def look(client: Client, form: Mapping[str, object], status: int = 200) -> str:
    response = client.post("/skips/new", {"act": "look", **form})
    assert response.status_code == status, response.content
    return response.content.decode()


def mark(page: str) -> str:
    (value,) = re.findall(r'name="seen" value="([^"]+)"', page)
    return str(value)


def add(client: Client, signature: str, **form: object) -> Any:
    data = {"act": "add", "seen": signature, "reason": "it kills", **form}
    return client.post("/skips/new", data)


def test_a_message_is_skipped_after_a_look_with_a_reason(
    anna: Client, now: datetime
) -> None:
    (poison,) = poisons(now, 1)
    link = f"/skips/new?message={poison.pk}"

    offered = get(anna, f"/messages/{poison.pk}")
    page = get(anna, link)
    form = {"message": poison.pk, "by": "bookmark", "consumer_group": "billing"}
    done = add(anna, mark(page), **form)

    added = Skip.objects.get()
    assert f'href="{link}"' in offered
    assert "1 of the last 1 message of orders in billing" in words(page)
    assert "Skip 1 message</button>" in page
    assert (done.status_code, done["Location"]) == (302, f"/skips/{added.pk}")
    assert (added.poison, added.consumer_group, added.kind) == (
        poison,
        "billing",
        "bookmark",
    )
    assert (added.reason, added.by, added.is_automatic) == (
        "it kills",
        "user:operatorTrue",
        False,
    )
    assert added.expires_at is not None
    assert timedelta(days=29) < added.expires_at - now < timedelta(days=31)
    entry = Entry.objects.get(action="skip.added")
    assert (entry.subject, entry.reason) == (f"skip:{added.pk}", "it kills")


def test_the_preview_names_the_active_skip_that_it_renews(
    anna: Client, now: datetime
) -> None:
    of_tenant(now, "acme")
    first_page = look(anna, RULE)
    expiry = now + timedelta(days=3)
    matcher = rule(header="tenant", equals="acme")
    existing = skip(now, matcher=matcher, reason="<b>mended", expires_at=expiry)

    page = look(anna, RULE)
    outdated = add(anna, mark(first_page), **RULE)
    done = add(anna, mark(page), **RULE)

    assert "is active" not in words(first_page)
    assert f'<a href="/skips/{existing.pk}">skip {existing.pk}</a> by user:anna' in page
    assert "Its reason: &lt;b&gt;mended" in page
    assert f"until {utc(expiry)}. Its reason" in words(page)
    assert f">Renew skip {existing.pk}</button>" in page
    assert outdated.status_code == 409
    assert "or the active one that it would renew, has changed" in words(
        outdated.content.decode()
    )
    assert done["Location"] == f"/skips/{existing.pk}"
    entry = Entry.objects.get(action="skip.renewed")
    assert (entry.detail["before"]["reason"], entry.reason) == ("<b>mended", "it kills")


def test_the_form_finds_the_active_skip_of_a_header_in_another_case(
    anna: Client, now: datetime
) -> None:
    of_tenant(now, "acme")
    existing = skip(now, matcher=rule(header="TENANT", equals="acme"))

    assert f">Renew skip {existing.pk}</button>" in look(
        anna, {**RULE, "where": "Tenant"}
    )


def test_the_page_of_a_renewed_skip_says_who_renewed_it_and_what_it_was(
    anna: Client, now: datetime
) -> None:
    matcher = rule(header="tenant", equals="acme")
    expiry = now + timedelta(days=3)
    olga = Principal(actor=Actor.user("olga"), scopes=frozenset(Scope))
    existing = skip(now, matcher=matcher, reason="it kills", expires_at=expiry)
    skip(now, matcher=matcher, reason="for good", principal=olga)
    skip(now, matcher=matcher, reason="until the repair", expires_at=expiry)

    page = words(get(anna, f"/skips/{existing.pk}"))

    topic = "of the topic orders, which"
    assert f"olga renewed skip {existing.pk} by rule" in page
    assert f"{topic} anna had added until {utc(expiry)}: “for good”" in page
    assert f"anna renewed skip {existing.pk} by rule" in page
    assert f"{topic} olga had added until a person removes it: “until the" in page


@pytest.mark.parametrize(
    ("by", "kind", "matched"),
    [("message_id", "message_id", 2), ("body_digest",) * 2 + (3,)],
)
def test_all_with_the_same_id_or_body_are_skipped_together(
    anna: Client, now: datetime, by: str, kind: str, matched: int
) -> None:
    first, *_ = poisons(now, 2, message_id="m-1")
    poisons(now, 1, message_id="m-2")
    poisons(now, 1, message_id="m-3", body=b"other")
    form = {"message": first.pk, "by": by, "consumer_group": ""}

    page = look(anna, form)
    add(anna, mark(page), **form)

    added = Skip.objects.get()
    assert f"{matched} of the last 4 messages of orders" in words(page)
    assert (added.kind, added.consumer_group, added.poison) == (kind, None, None)


def test_a_rule_shows_how_much_it_would_have_matched_with_samples(
    anna: Client, now: datetime
) -> None:
    matching = of_tenant(now, "acme", 3)
    (other,) = of_tenant(now, "zeta")

    page = look(anna, RULE)
    done = add(anna, mark(page), **RULE, lives="ever")

    assert "3 of the last 4 messages of orders" in words(page)
    assert [p.pk for p in matching if f'href="/messages/{p.pk}"' not in page] == []
    assert f'href="/messages/{other.pk}"' not in page
    assert done.status_code == 302
    assert Skip.objects.get().expires_at is None


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"customer": {"id": 13}}', "13"),
        (b'{"customer": {"id": "13"}}', '"13"'),
        (b'{"customer": {"id": "acme"}}', "acme"),
        (b'{"customer": {"id": null}}', "null"),
        (b'{"customer": {"id": true}}', "true"),
    ],
)
def test_a_pointer_matches_values_by_their_json_type(
    anna: Client, now: datetime, body: bytes, value: str
) -> None:
    poisons(now, 1, body=body)
    poisons(now, 1, body=b'{"customer": {"id": 7}}')

    form = {"by": "pointer", "where": "/customer/id", "topic": "orders"}
    page = look(anna, {**form, "value": value})

    assert "1 of the last 2 messages" in words(page)


def test_a_skip_of_everything_needs_its_box_ticked(anna: Client, now: datetime) -> None:
    of_tenant(now, "acme", skip_addition_and_removal.OVERBROAD_AFTER)
    page = look(anna, RULE)

    refused = add(anna, mark(page), **RULE)
    done = add(anna, mark(page), **RULE, everything="1")

    assert "Yes, all of them" in page
    assert refused.status_code == 422
    assert "Tick “Yes, all of them” if you mean" in words(refused.content.decode())
    assert done.status_code == 302
    assert Skip.objects.count() == 1


def test_only_the_previewed_skip_is_added(anna: Client, now: datetime) -> None:
    of_tenant(now, "acme")
    signature = mark(look(anna, RULE))

    refused = [
        add(anna, "", **RULE),
        add(anna, "forged", **RULE),
        add(anna, signature, **{**RULE, "value": "zeta"}),
        add(anna, signature, **RULE, consumer_group="billing"),
        add(anna, signature, **RULE, handler_version="2"),
    ]

    assert [response.status_code for response in refused] == [409] * 5
    assert "has changed since you looked" in refused[2].content.decode()
    assert "0 of the last 1 message" in words(refused[2].content.decode())
    assert not Skip.objects.exists()


def test_a_preview_of_another_person_is_refused(
    anna: Client, sign_in: SignIn, now: datetime
) -> None:
    of_tenant(now, "acme")
    signature = mark(look(anna, RULE))

    response = add(sign_in(Role.ADMIN), signature, **RULE)

    assert response.status_code == 409


def test_a_skip_needs_a_reason_and_its_end_too(anna: Client, now: datetime) -> None:
    of_tenant(now, "acme")
    existing = skip(now)

    added = add(anna, mark(look(anna, RULE)), **{**RULE, "reason": " "})
    removed = anna.post(f"/skips/{existing.pk}/remove", {"reason": " "})

    assert (added.status_code, removed.status_code) == (422, 422)
    assert b'aria-invalid="true"' in added.content
    assert b"Say why" in removed.content
    assert Skip.objects.active().get() == existing


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"topic": "nowhere"}, "there is no topic"),
        ({"topic": ""}, "there is no topic"),
        ({"topic": "or\0ders"}, "Null characters"),
        ({"topic": "x" * 300}, "at most 255"),
        ({"by": "colour"}, "Select a valid choice"),
        ({"lives": "long"}, "Select a valid choice"),
        ({"where": ""}, "header"),
        ({"where": "x" * 300}, "header"),
        ({"by": "pointer", "where": "customer"}, "JSON Pointer"),
        ({"by": "pointer", "where": "/a", "value": "[1]"}, "must be text"),
        ({"by": "pointer", "where": "/a", "value": "NaN"}, "must be text"),
        ({"by": "bookmark", "value": ""}, "send text"),
        ({"by": "body_digest", "value": "beef"}, "64 hexadecimal digits"),
        ({"value": "\0"}, "Null characters"),
        ({"consumer_group": "\0"}, "Null characters"),
    ],
)
def test_an_invalid_skip_shows_the_error_beside_the_form(
    anna: Client, now: datetime, form: dict[str, object], message: str
) -> None:
    of_tenant(now, "acme")

    page = look(anna, {**RULE, **form}, 422)

    assert message.lower() in words(page).lower()
    assert 'name="seen"' not in page


@pytest.mark.parametrize("number", ["99", "0", "-1", "x", "9" * 30, "0" * 9_000, "\0"])
def test_a_message_that_is_not_there_cannot_be_skipped(
    anna: Client, number: str
) -> None:
    assert anna.get("/skips/new", {"message": number}).status_code == 404


def test_a_blank_form_shows_nothing_wrong(anna: Client, now: datetime) -> None:
    of_tenant(now, "acme")

    page = get(anna, "/skips/new?topic=orders")

    assert 'role="alert"' not in page
    assert 'value="orders"' in page
    assert 'name="seen"' not in page


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
    skip_addition_and_removal.expire(now=now)
    after = get(anna, "/skips?everything=1")

    assert [
        ">Expired<" in page and f"/skips/{existing.pk}" in page
        for page in (before, after)
    ] == [True, True]
    assert "No skip" in get(anna, "/skips")


def test_a_skip_is_removed_from_the_page_of_its_message(
    anna: Client, now: datetime
) -> None:
    (poison,) = of_tenant(now, "acme")
    exact = {"kind": "bookmark", "value": poison.bookmark_text}
    own = skip(now, matcher=exact, consumer_group="billing")
    by_rule = skip(now, matcher=rule(header="tenant", equals="acme"))
    skip(now, matcher=exact, consumer_group="audit")
    skip(now, matcher=rule(header="tenant", equals="zeta"))
    here = f"/messages/{poison.pk}"

    before = get(anna, here)
    form = {"reason": "try again", "back": here}
    done = anna.post(f"/skips/{own.pk}/remove", form)
    after = get(anna, here)

    assert "2 active skips" in before
    assert [f"/skips/{each.pk}/remove" in before for each in (own, by_rule)] == [
        True,
        True,
    ]
    assert done["Location"] == here
    assert "1 active skip<" in after
    assert f"/skips/{own.pk}/remove" not in after


@pytest.mark.django_db(transaction=True)
def test_a_preview_of_a_requeue_names_what_a_rule_would_swallow(
    anna: Client, now: datetime
) -> None:
    first, second = of_tenant(now, "acme", 2)
    (other,) = of_tenant(now, "zeta")
    exact = {"kind": "bookmark", "value": other.bookmark_text}
    skip(now, matcher=exact)
    by_rule = skip(now, matcher=rule(header="tenant", equals="acme"))

    pages = {
        verb: preview(anna, verb, first, second, other) for verb in ("redrive", "drop")
    }

    assert "2 messages would be skipped again" in pages["redrive"]
    assert f'href="/skips/{by_rule.pk}"' in pages["redrive"]
    swallowed = pages["redrive"].partition('id="swallowed"')[2].partition("<form")[0]
    links = {int(n) for n in re.findall(r'href="/messages/(\d+)"', swallowed)}
    assert links == {first.pk, second.pk}
    assert "would be skipped again" not in pages["drop"]


def preview(client: Client, verb: str, *chosen: Poison) -> str:
    ids = [poison.pk for poison in chosen]
    response = client.post("/operations/preview", {"verb": verb, "ids": ids})
    assert Operation.objects.exists()
    return get(client, response["Location"])


@pytest.mark.django_db(transaction=True)
def test_a_requeue_that_nothing_swallows_says_nothing_of_skips(
    anna: Client, now: datetime
) -> None:
    (poison,) = of_tenant(now, "acme")
    rules = rule(header="tenant", equals="acme")
    skip(now, matcher=rules, topic="payments")
    skip(now, matcher=rules, consumer_group="audit")

    assert "would be skipped" not in preview(anna, "redrive", poison)


def test_a_suspected_message_says_so(anna: Client, now: datetime) -> None:
    capture(now, failure(now, suspected=True))
    poison = Poison.objects.get()

    pages = [get(anna, path) for path in ("/messages", f"/messages/{poison.pk}")]

    assert [">suspected</span>" in page for page in pages] == [True, True]
    assert "may itself be the problem" in pages[1]


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


def test_a_skip_on_an_invisible_topic_is_refused(now: datetime) -> None:
    (poison,) = of_tenant(now, "acme")
    data = QueryDict(mutable=True)
    data.update({**RULE, "message": str(poison.pk)})

    with pytest.raises(Invalid, match="there is no topic “orders” here"):
        skip_forms.draft(SkipForm(data, None), None, EU)
    with pytest.raises(Absent):
        skip_forms.message_of(data, EU)


def test_a_viewer_sees_disabled_buttons_with_the_reason(
    sign_in: SignIn, now: datetime
) -> None:
    existing = skip(now)
    (poison,) = poisons(now, 1, bookmark="b-1")
    skip(now, matcher={"kind": "bookmark", "value": "b-1"})
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
        {"kind": "bookmark", "value": "\0" * 100_000},
        {"kind": "message_id", "value": HOSTILE + "\ud800"},
        rule(header=HOSTILE[:200], equals=HOSTILE + "\0\ud800"),
        rule(pointer="/" + HOSTILE, equals=HOSTILE + "\0"),
        rule(pointer="", equals=None),
        rule(pointer="/a", equals=10**900),
    ],
)
def test_no_matcher_breaks_a_page(
    anna: Client, now: datetime, matcher: dict[str, object]
) -> None:
    removed = skip(
        now, matcher=matcher, reason=HOSTILE + "\0", consumer_group=HOSTILE[:200]
    )
    anna.post(f"/skips/{removed.pk}/remove", {"reason": HOSTILE})
    again = skip(now, matcher=matcher, reason=HOSTILE, handler_version="\u202e" * 200)

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


def test_no_message_breaks_the_page_that_skips_it(anna: Client, now: datetime) -> None:
    headers = [("a\x80", b"x"), ("", b"x"), (HOSTILE, b"x"), ("tenant", b"\xff\x00")]
    (poison,) = poisons(
        now,
        1,
        bookmark="\0\ud800" * 50_000,
        message_id=HOSTILE + "\0\ud800",
        headers=headers,
    )
    form = {"message": poison.pk, "consumer_group": ""}

    first = anna.get(f"/skips/new?message={poison.pk}")
    pages = [look(anna, {**form, "by": by}) for by in ("bookmark", "message_id")]
    done = [
        add(anna, mark(page), **form, by=by, reason=HOSTILE)
        for page, by in zip(pages, ("bookmark", "message_id"), strict=True)
    ]

    contents = [*pages, first.content.decode(), get(anna, f"/messages/{poison.pk}")]
    assert [response.status_code for response in done] == [302, 302]
    assert all("<script>alert" not in page for page in contents)
    assert all("\u202e" not in page for page in contents)
    assert "2 active skips" in contents[-1]
    assert 'option value="tenant"' in contents[-2]


def test_a_value_of_a_form_may_be_anything(anna: Client, now: datetime) -> None:
    of_tenant(now, "acme")

    page = look(anna, {**RULE, "value": HOSTILE, "reason": HOSTILE})

    assert "<script>alert" not in page
    assert add(anna, mark(page), **{**RULE, "value": HOSTILE}).status_code == 302


def test_the_page_says_the_same_to_the_api(anna: Client, now: datetime) -> None:
    of_tenant(now, "acme")
    existing = skip(now)

    page = unescape(look(anna, RULE))

    body = '{"kind": "rule", "value": {"header": "tenant", "equals": "acme"}}'
    assert "/api/v1/skips" in page
    assert body in page
    assert "-X DELETE" in unescape(get(anna, f"/skips/{existing.pk}"))


def test_a_poll_gets_only_the_live_part(anna: Client, now: datetime) -> None:
    existing = skip(now)

    part = anna.get("/skips", headers={"hx-request": "true"}).content.decode()

    assert "<html" not in part
    assert f'href="/skips/{existing.pk}"' in part


def test_the_key_and_the_link_lead_to_the_list(anna: Client) -> None:
    assert '<a href="/skips" data-go="s" aria-current="page">' in get(anna, "/skips")
