"""The account page: change the password, and end sessions."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.team import services
from apps.team.models import User
from apps.team.rights import Role
from tests.integration.dashboard.conftest import SignIn
from tests.integration.dashboard.page_forms import form_on

pytestmark = pytest.mark.django_db

PASSWORD, NEW = "correct horse", "another horse"
FORM = {"present": PASSWORD, "password": NEW, "repeated": NEW}
FOR_ADMINS = (
    *("/people/new", "/people/1/rights", "/people/1/active", "/people/1/password"),
    *("/people/1/sessions", "/keys/new", "/keys/1/revoke"),
)
ONLY_READ = ("/people", "/people/1", "/keys")
ASKED = [
    *(("get", path) for path in (*FOR_ADMINS, *ONLY_READ)),
    *(("post", path) for path in FOR_ADMINS),
]


@pytest.fixture
def vera(now: datetime) -> User:
    return services.create_user(
        username="vera",
        password=PASSWORD,
        role=Role.VIEWER,
        reads_bodies=False,
        actor=Actor.system("test"),
        now=now,
    )


def signed_in(address: str = "192.0.2.1") -> Client:
    client = Client(REMOTE_ADDR=address)
    client.post("/sign-in", {"username": "vera", "password": PASSWORD})
    return client


def statuses(*clients: Client) -> list[int]:
    return [client.get("/help").status_code for client in clients]


def words(response: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(("method", "path"), ASKED)
def test_people_and_keys_are_for_admins_and_the_account_is_for_everyone(
    sign_in: SignIn, role: Role, method: str, path: str
) -> None:
    client = sign_in(role)

    answer = getattr(client, method)(path.replace("/1", "/9999"))
    page = client.get("/account").content.decode()

    if role is Role.ADMIN:
        assert answer.status_code != 403
    else:
        assert answer.status_code == 403
        assert "People and keys are managed by admins." in words(answer)
    ways = [f'href="{way}"' in page for way in ("/people", "/keys", "/account")]
    assert ways == [role is Role.ADMIN, role is Role.ADMIN, True]


def test_a_password_is_changed_and_only_this_session_goes_on(vera: User) -> None:
    here, there = signed_in(), signed_in()
    form = form_on(here.get("/account"), button="Change the password")

    answer = form.press(here, **FORM)

    assert answer["Location"] == "/account"
    assert "Your password is changed" in words(here.get(answer["Location"]))
    assert "is changed" not in words(here.get("/account?done=password"))
    assert statuses(here, there) == [200, 302]
    assert User.objects.get().check_password(NEW)
    [entry] = Entry.objects.filter(action="user.password_set")
    assert (entry.actor, entry.subject, entry.source) == (
        "user:vera",
        "user:vera",
        "ui",
    )


@pytest.mark.parametrize(
    ("field", "changes", "says"),
    [
        ("present", {"present": "wrong horse"}, "This is not your present password"),
        ("present", {"present": ""}, "Enter your present password"),
        ("password", {"password": ""}, "Enter a password"),
        ("password", {"password": "short", "repeated": "short"}, "is too short"),
        ("password", {"password": "x" * 1_001}, "Give at most 1,000 characters"),
        ("repeated", {"repeated": "x"}, "not the same as the new password"),
        ("repeated", {"repeated": ""}, "Enter the new password a second time"),
    ],
)
def test_a_wrong_password_form_shows_the_error_at_its_field(
    vera: User, field: str, changes: dict[str, str], says: str
) -> None:
    here, there = signed_in(), signed_in()

    answer = here.post("/account/password", {**FORM, **changes})

    page = answer.content.decode()
    [tag] = re.findall(rf'<input id="{field}"[^>]*>', page)
    assert answer.status_code == 422
    assert says in words(answer)
    assert 'aria-invalid="true"' in tag
    assert statuses(here, there) == [200, 200]
    assert User.objects.get().check_password(PASSWORD)
    assert NEW not in page


def test_present_passwords_are_not_to_be_guessed(
    vera: User, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now", lambda: now)
    here = signed_in()

    wrong = [
        here.post("/account/password", {**FORM, "present": f"guess {n}"}).status_code
        for n in range(5)
    ]
    waits = here.post("/account/password", FORM)

    assert wrong == [422] * 5
    assert waits.status_code == 429
    assert int(waits["Retry-After"]) >= 1
    assert "Too many wrong passwords or codes: try again in" in words(waits)
    failed = Entry.objects.filter(action="user.sign_in_failed")
    assert [entry.detail["page"] for entry in failed] == ["Your account"] * 5
    assert User.objects.get().check_password(PASSWORD)


def test_the_account_lists_where_one_is_signed_in(
    vera: User, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = signed_in("192.0.2.1")
    signed_in("192.0.2.2")
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(hours=3))

    page = here.get("/account").content.decode()

    rows = re.findall(r"<tr>.*?</tr>", page, re.DOTALL)[1:]
    lines = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
    assert lines[0].startswith("192.0.2.1 this one")
    assert lines[0].endswith("UTC now")
    assert lines[1].startswith("192.0.2.2 ")
    assert lines[1].endswith("UTC 2h ago End")
    assert "End" not in lines[0]


def test_no_page_contains_the_key_of_a_session(vera: User) -> None:
    here, there = signed_in(), signed_in()

    page = here.get("/account").content.decode()

    for client in (here, there):
        key = client.session.session_key
        assert key
        assert key not in page


def test_one_session_is_ended(vera: User) -> None:
    here, there, third = signed_in(), signed_in("192.0.2.2"), signed_in()
    page = here.get("/account")
    form = form_on(page, button="End the session from 192.0.2.2")

    answer = form.press(here)
    again = form.press(here)

    assert (answer["Location"], again.status_code) == ("/account", 302)
    assert statuses(here, there, third) == [200, 302, 200]
    assert Entry.objects.filter(action="user.sessions_ended").count() == 1


def test_all_other_sessions_are_ended(vera: User) -> None:
    here, *others = (signed_in() for _ in range(3))

    answer = here.post("/account/sessions", {"others": "1"})

    assert "All your other sessions have ended" in words(here.get(answer["Location"]))
    assert statuses(here, *others) == [200, 302, 302]
    assert "End all others" not in words(here.get("/account"))
    [entry] = Entry.objects.filter(action="user.sessions_ended")
    assert (entry.actor, entry.source) == ("user:vera", "ui")


@pytest.mark.parametrize("path", ["/account/password", "/account/sessions"])
def test_reloading_the_page_of_a_post_redirects_to_the_account(
    vera: User, path: str
) -> None:
    answer = signed_in().get(path)

    assert (answer.status_code, answer["Location"]) == (302, "/account")


def test_a_hostile_address_is_only_text(vera: User) -> None:
    page = signed_in("<script>alert(1)</script>").get("/account").content.decode()

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
