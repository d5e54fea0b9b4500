"""Admins create and revoke API keys on their pages."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.brokers.models import Topic
from apps.core.actor import Actor
from apps.dashboard.forms.people_and_keys import ROLES, SCOPES
from apps.team import services
from apps.team.models import ApiKey
from apps.team.rights import Role, Scope
from tests.integration.dashboard.page_forms import form_on

pytestmark = pytest.mark.django_db

ADA = Actor.user("ada")
NEW: dict[str, Any] = {
    "name": "billing",
    "scopes": ["poisons:read", "capture:write"],
    "topics": "billing.*\r\n\r\norders",
    "expires": "2999-12-31",
}
HOSTILE = "</td><script>alert(1)</script>'\""


def words(response: Any) -> str:
    spaced = response.content.decode().replace("</span>", " ")
    return " ".join(re.sub(r"<[^>]+>", "", spaced).split())


def key(now: datetime, **changes: Any) -> services.NewKey:
    values: dict[str, Any] = {"name": "ci", "scopes": [Scope.POISONS_READ]}
    return services.create_api_key(actor=ADA, now=now, **{**values, **changes})


def status_with(secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return Client().get("/api/v1/poisons", headers=headers).status_code


def test_a_key_is_made_and_its_secret_is_shown_once(admin: Client) -> None:
    answer = admin.post("/keys/new", NEW)

    [secret] = re.findall(r'id="secret"[^>]*>([^<]+)<', answer.content.decode())
    api_key = ApiKey.objects.get()
    assert answer["Cache-Control"] == "no-store"
    assert status_with(secret) == 200
    assert (api_key.name, api_key.scopes) == (
        "billing",
        ["capture:write", "poisons:read"],
    )
    assert api_key.topics == ["billing.*", "orders"]
    assert api_key.created_by == "user:adminFalse"
    assert f"{api_key.expires_at:%Y-%m-%d %H:%M:%S}" == "2999-12-31 23:59:59"
    again = admin.post("/keys/new", NEW)
    for page in (again, admin.get("/keys"), admin.get(f"/keys/{api_key.pk}/revoke")):
        assert secret not in page.content.decode()
    assert again.status_code == 422
    assert ApiKey.objects.count() == 1
    [entry] = Entry.objects.filter(action="api_key.created")
    assert (entry.actor, entry.source) == ("user:adminFalse", "ui")
    assert secret not in entry.record


def test_the_form_proposes_all_topics_and_an_end(admin: Client, now: datetime) -> None:
    form = form_on(admin.get("/keys/new"), button="Make the key")

    assert form.values["topics"] == "*"
    assert form.values["expires"] == f"{now + timedelta(days=90):%Y-%m-%d}"
    assert "scopes" not in form.values


def test_a_key_without_a_last_day_does_not_expire(admin: Client) -> None:
    admin.post("/keys/new", {**NEW, "expires": "", "topics": "*"})

    api_key = ApiKey.objects.get()
    assert (api_key.expires_at, api_key.topics) == (None, ["*"])
    assert "never" in words(admin.get("/keys"))


def test_topics_may_stand_between_commas(admin: Client, orders: Topic) -> None:
    answer = admin.post("/keys/new", {**NEW, "topics": "orders, ship.*,\r\norders"})

    assert ApiKey.objects.get().topics == ["orders", "ship.*"]
    assert "No topic has this name yet: ship.*." in words(answer)


def test_a_key_for_some_topics_warns_that_it_cannot_read_the_trail(
    admin: Client,
) -> None:
    trail = {**NEW, "scopes": ["audit:read"]}
    some = admin.post("/keys/new", trail)
    every = admin.post("/keys/new", {**trail, "name": "all", "topics": "*"})

    assert "audit:read has no effect with this key" in words(some)
    assert "has no effect" not in words(every)


def test_a_key_may_expire_today(admin: Client, now: datetime) -> None:
    answer = admin.post("/keys/new", {**NEW, "expires": f"{now:%Y-%m-%d}"})

    assert answer.status_code == 200
    assert ApiKey.objects.get().state(now) == "usable"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "", "Give a name of up to 100 characters"),
        ("name", "x" * 101, "Give a name of up to 100 characters"),
        ("name", "a\u202eb", "Give up to 100 characters that can be seen"),
        ("name", "ci", "There is a key called ci already: choose another name"),
        ("name", "gone", "There is a key called gone already, though it is revoked"),
        ("name", "Poisonweb (worker)", "entries of the trail that Poisonweb writes"),
        ("name", "KEY:x", "entries of the trail that Poisonweb writes"),
        ("name", "system\uff1afoo", "entries of the trail that Poisonweb writes"),
        ("scopes", [], "Tick at least one scope"),
        ("scopes", ["everything"], "Tick scopes of the list"),
        ("topics", "", "Name at least one topic, or * for all"),
        ("topics", " \r\n ", "Name at least one topic, or * for all"),
        ("topics", "x" * 256, "Give 1 to 100 names or patterns of topics"),
        ("topics", "a\x1bb", "Give 1 to 100 names or patterns of topics"),
        ("topics", "\n".join(map(str, range(101))), "Give 1 to 100 names"),
        ("topics", "x" * 100_000, "Give at most 100 names or patterns"),
        ("expires", "soon", "Write a day as 2027-01-31, or nothing"),
        ("expires", "2020-01-01", "Give a day that is not over yet, or none"),
        ("expires", "99999-01-01", "Write a day as 2027-01-31, or nothing"),
    ],
)
def test_an_invalid_key_form_shows_the_error_at_its_field(
    admin: Client, now: datetime, field: str, value: object, says: str
) -> None:
    key(now)
    key(now, name="gone")
    services.revoke_api_key(name="gone", actor=ADA, now=now)

    answer = admin.post("/keys/new", {**NEW, field: value})

    page = answer.content.decode()
    assert answer.status_code == 422
    assert says in words(answer)
    assert ApiKey.objects.count() == 2
    if field == "scopes":
        assert '<fieldset class="field" aria-describedby="wrong">' in page
    else:
        [tag] = re.findall(rf'<(?:input|textarea)[^>]* id="{field}"[^>]*>', page)
        assert 'aria-invalid="true"' in tag
        assert page.count(" checked>") == 2  # what was ticked stays so


def test_the_list_says_what_each_key_may_do_and_whether_it_still_may(
    admin: Client, now: datetime
) -> None:
    services.recognise(secret=key(now, topics=["orders.*"]).secret, now=now)
    key(now, name="a-old", expires_at=now - timedelta(days=1))
    key(now, name="a-gone")
    services.revoke_api_key(name="a-gone", actor=ADA, now=now)

    page = admin.get("/keys")

    rows = re.findall(r"<tr.*?</tr>", page.content.decode(), re.DOTALL)[1:]
    lines = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
    assert [line.split()[0] for line in lines] == ["ci", "a-gone", "a-old"]
    for part in ("Usable", "poisons:read", "orders.*", "user:ada", "never now"):
        assert part in lines[0]
    assert ApiKey.objects.get(name="ci").prefix + "…" in lines[0]
    assert "Revoked" in lines[1]
    assert f"{now - timedelta(days=1):%Y-%m-%d} never" in lines[2]
    assert [("Revoke…" in line) for line in lines] == [True, False, False]


def test_a_revoked_key_is_refused_at_once(admin: Client, now: datetime) -> None:
    new_key = key(now)
    before = status_with(new_key.secret)
    page = admin.get(f"/keys/{new_key.key.pk}/revoke")
    looked = status_with(new_key.secret)

    answer = form_on(page, button="Revoke ci").press(admin)

    assert (before, looked, status_with(new_key.secret)) == (200, 200, 401)
    assert "is revoked: its next request" in words(admin.get(answer["Location"]))
    assert "next request" not in words(admin.get("/keys?revoked=1"))
    again = admin.post(f"/keys/{new_key.key.pk}/revoke")
    assert again.status_code == 302
    [entry] = Entry.objects.filter(action="api_key.revoked")
    assert (entry.actor, entry.subject, entry.source) == (
        "user:adminFalse",
        "api_key:ci",
        "ui",
    )


def test_the_page_of_a_revoked_key_says_when_and_by_whom(
    admin: Client, now: datetime
) -> None:
    api_key = key(now).key
    services.revoke_api_key(name="ci", actor=ADA, now=now)

    page = words(admin.get(f"/keys/{api_key.pk}/revoke"))

    assert re.search(r"Revoked .*\d\d:\d\d.* by user:ada", page)
    assert "Nothing has been done yet" not in page
    assert "Revoke ci?" not in page


def test_a_key_that_ended_is_not_offered_to_be_revoked(
    admin: Client, now: datetime
) -> None:
    old = key(now, expires_at=now - timedelta(days=1))

    page = words(admin.get(f"/keys/{old.key.pk}/revoke"))

    assert "It has ended" in page
    assert "Revoke ci" not in page


def test_a_key_that_is_not_there_is_not_found(admin: Client) -> None:
    assert admin.get("/keys/9999/revoke").status_code == 404
    assert admin.post("/keys/9999/revoke").status_code == 404


def test_an_installation_without_keys_says_what_needs_one(admin: Client) -> None:
    assert "No key yet" in words(admin.get("/keys"))


def test_hostile_names_and_topics_are_only_text(admin: Client, now: datetime) -> None:
    new_key = key(now, name=HOSTILE, topics=[HOSTILE])
    ApiKey.objects.update(name=f"{HOSTILE}\u202e", topics=[f"{HOSTILE}\u202e"])
    created = admin.post("/keys/new", {**NEW, "name": f"b{HOSTILE}"})

    for page in (
        admin.get("/keys"),
        admin.get(f"/keys/{new_key.key.pk}/revoke"),
        created,
    ):
        text = page.content.decode()
        assert "<script>alert" not in text
        assert "\u202e" not in text
        assert "&lt;script&gt;alert(1)" in text


def test_each_scope_and_each_role_is_explained() -> None:
    assert set(SCOPES) == set(Scope)
    assert set(ROLES) == set(Role)
