"""Admins add, change and sign out people on their pages."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from apps.core.actor import Actor
from apps.team import services
from apps.team.models import User
from apps.team.rights import Role
from tests.audit_entries import entries
from tests.integration.dashboard.page_forms import form_on

pytestmark = pytest.mark.django_db

ADA = Actor.user("ada")
PASSWORD = "correct horse"
NEW = {
    "username": "vera",
    "password": PASSWORD,
    "role": "viewer",
    "reads_bodies": "1",
}
HOSTILE = "</td><script>alert(1)</script>{{ 7*7 }}'\""


@pytest.fixture
def vera(now: datetime) -> User:
    return person("vera", now)


def person(name: str, now: datetime, role: Role = Role.VIEWER) -> User:
    return services.create_user(
        username=name,
        password=PASSWORD,
        role=role,
        reads_bodies=False,
        actor=ADA,
        now=now,
    )


def signed_in(name: str = "vera") -> Client:
    client = Client(REMOTE_ADDR="192.0.2.1")
    client.post("/sign-in", {"username": name, "password": PASSWORD})
    return client


def words(response: Any) -> str:
    text = re.sub(r"<[^>]+>", " ", response.content.decode())
    return " ".join(text.split())


def test_the_list_says_who_may_what_and_who_is_signed_in(
    admin: Client, vera: User, now: datetime
) -> None:
    person("bert", now, Role.OPERATOR)
    services.alter_user(username="bert", is_active=False, actor=ADA, now=now)
    for _ in range(2):
        signed_in()

    page = admin.get("/people").content.decode()

    rows = [words_of(row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)[1:]]
    assert rows == [
        "adminFalse you ● Active admin no bodies no second factor 1 now",
        "vera ● Active viewer no bodies no second factor 2 now",
        "bert ✕ Disabled operator no bodies no second factor 0 never",
    ]


def words_of(html: str) -> str:
    spaced = re.sub(r"(?<=</span>)(?=\w)", " ", html)
    return " ".join(re.sub(r"<[^>]+>", " ", spaced).split())


def test_a_person_is_added_and_can_sign_in(admin: Client) -> None:
    form = form_on(admin.get("/people/new"), button="Add the person")

    answer = form.press(admin, **NEW)

    vera = User.objects.get(username="vera")
    assert answer["Location"] == f"/people/{vera.pk}"
    assert (vera.role, vera.reads_bodies) == ("viewer", True)
    assert "is added, and can sign in now" in words(admin.get(answer["Location"]))
    assert signed_in().get("/help").status_code == 200
    [entry] = entries("user.created")[1:]
    assert (entry.actor, entry.subject, entry.source) == (
        "user:adminFalse",
        "user:vera",
        "ui",
    )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("username", "", "Give a name of up to 150 characters"),
        ("username", "x" * 151, "Give a name of up to 150 characters"),
        ("username", " vera", "Give up to 150 characters that can be seen"),
        ("username", "a\u202eb", "Give up to 150 characters that can be seen"),
        ("username", "User:vera", "entries of the trail that Poisonweb writes"),
        ("username", "poisonweb", "entries of the trail that Poisonweb writes"),
        ("username", "ADMINFALSE", "There is already a person called ADMINFALSE"),
        ("password", "", "Enter a password"),
        ("password", "short", "This password is too short"),
        ("password", "poisonweb", "the first that others would try"),
        ("password", "my-VERA-password", "This password contains the user name"),
        ("password", "x" * 1_001, "Give at most 1,000 characters"),
        ("role", "owner", "Choose one of viewer, operator, admin"),
        ("role", "", "Choose one of viewer, operator, admin"),
    ],
)
def test_an_invalid_person_form_shows_the_error_at_its_field(
    admin: Client, field: str, value: str, says: str
) -> None:
    answer = admin.post("/people/new", {**NEW, field: value})

    page = answer.content.decode()
    assert answer.status_code == 422
    assert says in words(answer)
    assert is_marked(page, field)
    assert User.objects.count() == 1
    assert PASSWORD not in page


def is_marked(page: str, field: str) -> bool:
    """Check that the error describes the field, or the group of fields."""
    if field == "role":
        return '<fieldset class="field" aria-describedby="wrong">' in page
    [tag] = re.findall(rf'<input id="{field}"[^>]*>', page)
    described = re.search(r'aria-describedby="([^"]*)"', tag)
    assert described
    return 'aria-invalid="true"' in tag and "wrong" in described[1].split()


def test_rights_are_changed(admin: Client, vera: User) -> None:
    form = form_on(admin.get(f"/people/{vera.pk}"), button=">Save<")

    answer = form.press(admin, role="operator", reads_bodies="1")

    vera.refresh_from_db()
    assert form.values["role"] == "viewer"
    assert answer["Location"] == f"/people/{vera.pk}"
    assert (vera.role, vera.reads_bodies) == ("operator", True)
    [entry] = entries("user.altered")
    assert (entry.actor, entry.source) == ("user:adminFalse", "ui")


def test_a_success_message_is_shown_once_and_not_by_the_address(
    admin: Client, vera: User
) -> None:
    here = f"/people/{vera.pk}"
    form = form_on(admin.get(here), button=">Save<")

    same = words(admin.get(form.press(admin)["Location"]))
    changed = words(admin.get(form.press(admin, role="operator")["Location"]))
    forged = words(admin.get(f"{here}?done=disabled"))

    assert "vera is as before: nothing was changed." in same
    assert "vera has these rights from the next page on." in changed
    assert not re.search("as before|from the next page|vera is disabled", forged)


@pytest.mark.parametrize(
    ("where", "data"), [("rights", {"role": "viewer"}), ("active", {})]
)
def test_the_last_admin_stays_one(
    admin: Client, where: str, data: dict[str, str]
) -> None:
    own = User.objects.get()

    answer = admin.post(f"/people/{own.pk}/{where}", data)

    assert answer.status_code == 409
    assert "adminFalse is the last admin: make another one first." in words(answer)
    own.refresh_from_db()
    assert (own.role, own.is_active) == ("admin", True)
    assert entries("user.altered") == []


def test_who_gives_up_being_an_admin_is_led_to_a_page_they_may_see(
    admin: Client, now: datetime
) -> None:
    person("ada", now, Role.ADMIN)
    own = User.objects.get(username="adminFalse")

    answer = admin.post(f"/people/{own.pk}/rights", {"role": "viewer"})

    assert answer["Location"] == "/account"
    assert admin.get("/account").status_code == 200
    assert admin.get("/people").status_code == 403


def test_who_is_disabled_is_signed_out_until_they_are_enabled(
    admin: Client, vera: User
) -> None:
    client = signed_in()

    page = admin.get(f"/people/{vera.pk}")
    form_on(page, button="Disable this person").press(admin)
    ended, refused = client.get("/help"), signed_in().get("/help")
    page = admin.get(f"/people/{vera.pk}")
    enabling = form_on(page, button="Enable this person")
    enabled = admin.post(enabling.action, {"enable": "1"})

    assert [ended.status_code, refused.status_code] == [302, 302]
    assert enabled["Location"] == f"/people/{vera.pk}"
    assert client.get("/help").status_code == 302
    assert signed_in().get("/help").status_code == 200


def test_a_new_password_ends_their_sessions(admin: Client, vera: User) -> None:
    client = signed_in()
    form = form_on(admin.get(f"/people/{vera.pk}"), button="Set the password")

    weak = form.press(admin, password="short")
    before = client.get("/help").status_code
    answer = form.press(admin, password="another horse")

    assert weak.status_code == 422
    assert is_marked(weak.content.decode(), "password")
    assert answer["Location"] == f"/people/{vera.pk}"
    assert (before, client.get("/help").status_code) == (200, 302)
    assert User.objects.get(pk=vera.pk).check_password("another horse")
    [entry] = entries("user.password_set")
    assert (entry.actor, entry.subject) == ("user:adminFalse", "user:vera")


def test_sessions_are_ended(admin: Client, vera: User) -> None:
    clients = [signed_in() for _ in range(2)]
    page = admin.get(f"/people/{vera.pk}")

    form_on(page, button="End 2 sessions").press(admin)

    assert [client.get("/help").status_code for client in clients] == [302, 302]
    assert "End 0 sessions" not in words(admin.get(f"/people/{vera.pk}"))
    assert len(entries("user.sessions_ended")) == 1


def test_ones_own_password_is_changed_in_the_account_only(admin: Client) -> None:
    own = User.objects.get()

    page = admin.get(f"/people/{own.pk}").content.decode()

    assert 'type="password"' not in page
    assert 'href="/account"' in page


@pytest.mark.parametrize("what", ["", "/rights", "/active", "/password", "/sessions"])
def test_an_unknown_person_is_not_found(admin: Client, what: str) -> None:
    ask = admin.post if what else admin.get

    assert ask(f"/people/9999{what}").status_code == 404


@pytest.mark.parametrize("what", ["rights", "active", "password", "sessions"])
def test_a_reload_of_an_answer_leads_to_the_person(
    admin: Client, vera: User, what: str
) -> None:
    answer = admin.get(f"/people/{vera.pk}/{what}")

    assert (answer.status_code, answer["Location"]) == (302, f"/people/{vera.pk}")


@pytest.mark.parametrize(
    "path",
    [
        *("/people/new", "/people/1/rights", "/people/1/active"),
        *("/people/1/password", "/people/1/sessions", "/keys/new", "/keys/1/revoke"),
        *("/account/password", "/account/sessions"),
    ],
)
def test_nothing_is_changed_by_a_form_of_another_site(
    admin: Client, vera: User, path: str
) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = admin.cookies

    answer = strict.post(path.replace("/1", f"/{vera.pk}"), {**NEW, "others": "1"})

    assert answer.status_code == 403
    assert admin.get("/people").status_code == 200
    assert entries("user.sessions_ended") == entries("user.password_set") == []


def test_a_hostile_name_is_only_text(admin: Client, now: datetime) -> None:
    hostile = person(HOSTILE, now)
    User.objects.filter(pk=hostile.pk).update(username=f"{HOSTILE}\u202e")

    for path in ("/people", f"/people/{hostile.pk}"):
        page = admin.get(path).content.decode()
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "&lt;script&gt;alert(1)" in page


def test_ten_people_need_no_more_queries_than_one(
    admin: Client, now: datetime, django_assert_num_queries: Any
) -> None:
    with CaptureQueriesContext(connection) as captured:
        admin.get("/people")
    before = len(captured)
    for number in range(10):
        person(f"person {number}", now)
        signed_in(f"person {number}")
    with django_assert_num_queries(before):
        admin.get("/people")
