"""The form of a skip: preview, addition, renewal and refusals."""

from __future__ import annotations

from datetime import datetime, timedelta
from html import unescape

import pytest
from django.http import QueryDict
from django.test import Client

from apps.audit.models import Entry
from apps.core.actor import Actor
from apps.core.errors import Absent, Invalid
from apps.dashboard.forms import new_skip as skip_forms
from apps.dashboard.forms.new_skip import SkipForm
from apps.dashboard.presentation.moments import utc
from apps.poison import skip_addition_and_removal
from apps.poison.models import Skip
from apps.team.rights import Principal, Role, Scope
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.pages import get, words
from tests.integration.dashboard.skips_and_their_form import (
    HOSTILE,
    RULE,
    add,
    look,
    mark,
    of_tenant,
    skip,
)
from tests.skip_builders_and_list_mirror import rule

pytestmark = pytest.mark.django_db

EU = Principal(actor=Actor.key("eu"), scopes=frozenset(Scope), topics=("orders.eu",))


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
    existing = skip(now, matcher, reason="<b>mended", expires_at=expiry)

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
    existing = skip(now, rule(header="TENANT", equals="acme"))

    assert f">Renew skip {existing.pk}</button>" in look(
        anna, {**RULE, "where": "Tenant"}
    )


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


def test_a_skip_on_an_invisible_topic_is_refused(now: datetime) -> None:
    (poison,) = of_tenant(now, "acme")
    data = QueryDict(mutable=True)
    data.update({**RULE, "message": str(poison.pk)})

    with pytest.raises(Invalid, match="there is no topic “orders” here"):
        skip_forms.draft(SkipForm(data, None), None, EU)
    with pytest.raises(Absent):
        skip_forms.message_of(data, EU)


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
