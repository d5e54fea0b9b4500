"""The second factor: sign-in by code, enrolment, recovery codes, audit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.test import Client, override_settings

from apps.core import clock
from apps.core.actor import Actor
from apps.team import second_factor
from apps.team.models import User
from apps.team.rights import Role
from apps.team.services import create_user
from apps.team.sign_in_attempts import SignInAttempt
from apps.team.sign_in_errors import TooManySignIns
from tests.audit_entries import entries
from tests.authenticator_app import PASSWORD, Phone, add_factor, codes_on, secret_on
from tests.integration.dashboard.page_forms import form_on
from tests.integration.dashboard.pages import is_in
from tests.races import together

pytestmark = pytest.mark.django_db

BEGAN = datetime.fromisoformat("2026-11-20T12:00:05+00:00")
PERIOD = timedelta(seconds=30)


class Time:
    """The server's clock, which a test moves."""

    def __init__(self) -> None:
        self.now = BEGAN

    def go_on(self, by: timedelta = 2 * PERIOD) -> datetime:
        self.now += by
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(clock, "now", lambda: time.now)
    return time


@pytest.fixture
def anna(time: Time) -> User:
    return person("anna", Role.OPERATOR)


def person(name: str, role: Role) -> User:
    return create_user(
        username=name,
        password=PASSWORD,
        role=role,
        reads_bodies=False,
        actor=Actor.system("test"),
        now=BEGAN,
    )


@pytest.fixture
def required() -> Iterator[None]:
    with override_settings(POISONWEB_SECOND_FACTOR=("operator",)):
        yield


def with_password(
    name: str = "anna", *, next_url: str = "", address: str = "192.0.2.1"
) -> tuple[Client, Any]:
    client = Client(REMOTE_ADDR=address)
    form = {"username": name, "password": PASSWORD, "next": next_url}
    return client, client.post("/sign-in", form)


@pytest.fixture
def phone(anna: User, time: Time) -> Phone:
    """Add a second factor for anna, and move the clock to the next code."""
    client, _ = with_password()
    phone = add_factor(client, time.now)
    time.go_on()
    return phone


def enter(client: Client, code: str) -> int:
    return client.post("/sign-in/code", {"code": code}).status_code


def test_who_has_a_factor_is_signed_in_by_its_code_and_led_on(
    phone: Phone, time: Time
) -> None:
    client, answer = with_password(next_url="/audit")
    early = is_in(client)

    form = form_on(client.get(answer["Location"]), button="Sign in")
    led = form.press(client, code=phone.code(time.now))

    assert answer["Location"] == "/sign-in/code?next=%2Faudit"
    assert not early
    assert (led.status_code, led["Location"]) == (302, "/audit")
    assert is_in(client)
    assert len(entries("user.signed_in")) == 2


def test_the_code_page_says_whose_account_it_is_and_what_helps(phone: Phone) -> None:
    client, answer = with_password()

    page = client.get(answer["Location"]).content.decode()

    assert "You are signing in as <strong>anna</strong>." in page
    assert "manage.py remove_second_factor</code>" in page


def test_admins_see_who_has_a_factor_and_how_a_lost_one_is_removed(
    phone: Phone, anna: User
) -> None:
    ada, admin = person("ada", Role.ADMIN), Client()
    admin.force_login(ada)

    people = admin.get("/people").content.decode()
    pages = [admin.get(f"/people/{one.pk}").content.decode() for one in (anna, ada)]

    assert people.count(">second factor<") == 1
    assert people.count(">no second factor<") == 1
    commands = [f"remove_second_factor {name}<" for name in ("anna", "ada")]
    assert [say in page for say, page in zip(commands, pages, strict=True)] == [
        True,
        False,
    ]


def test_forms_say_what_they_will_do_and_which_codes_they_take(at_home: Client) -> None:
    page = at_home.get("/second-factor").content.decode()

    assert "New codes end the present ones." in page
    assert "Removing it ends your other sessions." in page
    assert page.count("Six digits from the app, or one of your recovery codes.") == 2


def test_a_code_leads_to_no_other_site(phone: Phone, time: Time) -> None:
    client, _ = with_password()
    form = {"code": phone.code(time.now), "next": "https://evil.example/"}

    assert client.post("/sign-in/code", form)["Location"] == "/"


def test_the_account_leads_to_the_factor_and_says_whether_there_is_one(
    anna: User, time: Time
) -> None:
    here = with_password()[0]
    before = here.get("/account").content.decode()
    add_factor(here, time.now)

    after = here.get("/account").content.decode()

    assert '<a href="/second-factor">add an authenticator app</a>' in before
    assert '<a href="/second-factor">recovery codes, or remove it</a>' in after


def test_a_code_is_good_once_and_so_are_those_before_it(
    phone: Phone, time: Time
) -> None:
    code, before = phone.code(time.now), phone.code(time.now - PERIOD)
    first = enter(with_password()[0], code)

    again = enter(with_password()[0], code)
    older = enter(with_password()[0], before)

    assert (first, again, older) == (302, 200, 200)


def test_the_code_of_the_enrolment_is_used_up(anna: User, time: Time) -> None:
    phone = add_factor(with_password()[0], time.now)

    assert enter(with_password()[0], phone.code(time.now)) == 200


@pytest.mark.parametrize(("off", "status"), [(-2, 200), (-1, 302), (1, 302), (2, 200)])
def test_a_phone_may_be_off_by_one_period(
    phone: Phone, time: Time, off: int, status: int
) -> None:
    time.go_on(10 * PERIOD)

    assert enter(with_password()[0], phone.code(time.now + off * PERIOD)) == status


def test_a_recovery_code_signs_in_once_and_is_on_record(phone: Phone) -> None:
    code, other = phone.recovery_codes[:2]
    first, again = enter(with_password()[0], code), enter(with_password()[0], code)
    client, _ = with_password()
    other_code = enter(client, other.replace(" ", ""))

    assert (len(set(phone.recovery_codes)), first, again, other_code) == (
        10,
        302,
        200,
        302,
    )
    assert "8 recovery codes" in client.get("/second-factor").content.decode()
    assert [e.subject for e in entries("user.recovery_code_used")] == ["user:anna"] * 2


def test_without_the_password_a_code_is_worth_nothing(phone: Phone, time: Time) -> None:
    client = Client()

    assert client.get("/sign-in/code")["Location"] == "/sign-in"
    assert enter(client, phone.code(time.now)) == 200
    assert not is_in(client)


def test_the_password_counts_for_ten_minutes(phone: Phone, time: Time) -> None:
    client, _ = with_password()

    time.go_on(timedelta(minutes=11))

    assert enter(client, phone.code(time.now)) == 200
    assert not is_in(client)


@pytest.mark.parametrize(
    "change",
    [{"is_active": False}, {"password": "!"}, {"sessions_ended_at": BEGAN - PERIOD}],
)
def test_a_sign_in_that_ended_before_the_code_is_refused(
    phone: Phone, time: Time, change: dict[str, Any]
) -> None:
    client, _ = with_password()
    User.objects.update(**change)

    enter(client, phone.code(time.now))

    assert not is_in(client)


def test_wrong_codes_wait_and_are_on_record_like_wrong_passwords(
    phone: Phone, time: Time
) -> None:
    client, _ = with_password()
    wrong = [enter(client, "000000") for _ in range(5)]

    waits = client.post("/sign-in/code", {"code": phone.code(time.now)})

    assert wrong == [200] * 5
    assert waits.status_code == 429
    assert int(waits["Retry-After"]) >= 1
    assert "try again in 1 s" in waits.content.decode()
    failed = entries("user.sign_in_failed")
    assert failed[-1].detail == {"address": "192.0.2.1", "failures": 5, "of": "code"}
    time.go_on(timedelta(seconds=2))
    assert enter(client, phone.code(time.now)) == 302


def test_a_right_password_does_not_reset_the_limit_of_wrong_codes(phone: Phone) -> None:
    for _ in range(4):
        enter(with_password()[0], "000000")
    client, _ = with_password()
    fifth = enter(client, "000000")

    assert (fifth, enter(client, "000000")) == (200, 429)
    assert with_password()[1].status_code == 429


def test_a_right_code_makes_wrong_ones_forgotten(phone: Phone, time: Time) -> None:
    client, _ = with_password()
    for _ in range(4):
        enter(client, "000000")

    assert enter(client, phone.code(time.now)) == 302
    assert [enter(with_password()[0], "000000") for _ in range(4)] == [200] * 4


def test_many_wrong_codes_for_an_account_raise_an_alert(
    phone: Phone, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(20):
        enter(with_password(address=f"198.51.100.{n}")[0], "000000")

    [alert] = entries("user.sign_ins_suspicious")
    assert (alert.subject, alert.detail["of"]) == ("user:anna", "code")


def test_after_many_wrong_codes_an_account_waits_at_every_address(
    phone: Phone, time: Time
) -> None:
    for n in range(20):
        enter(with_password(address=f"198.51.100.{n}")[0], "000000")
    client, response = with_password(address="203.0.113.1")

    waits = enter(client, phone.code(time.now))
    time.go_on()

    assert response["Location"].startswith("/sign-in/code")
    assert waits == 429
    assert enter(client, phone.code(time.now)) == 302
    assert enter(with_password(address="203.0.113.2")[0], "000000") == 200


def test_secrets_lie_sealed_in_the_database(phone: Phone, anna: User) -> None:
    stored = [str(each.data) for each in Authenticator.objects.all()]
    person("ben", Role.VIEWER)
    ben, _ = with_password("ben")
    offered = secret_on(ben.get("/second-factor").content.decode())
    sessions = [str(each.get_decoded()) for each in Session.objects.all()]

    assert len(stored) == 2
    assert phone.secret not in "".join(stored)
    assert offered not in "".join(sessions)


def test_under_another_key_a_page_says_what_to_do(phone: Phone, time: Time) -> None:
    with override_settings(SECRET_KEY="another"):
        client, _ = with_password()
        answer = client.post("/sign-in/code", {"code": phone.code(time.now)})

    assert answer.status_code == 503
    assert "sealed under another POISONWEB_SECRET_KEY" in answer.content.decode()


def test_adding_one_needs_the_password_and_a_code_of_the_app(
    anna: User, time: Time
) -> None:
    client, _ = with_password()
    phone = Phone(secret_on(client.get("/second-factor").content.decode()))
    right = phone.code(time.now)

    def add(password: str, code: str) -> tuple[int, str]:
        answer = client.post("/second-factor", {"password": password, "code": code})
        return answer.status_code, answer.content.decode()

    no_password, no_code = add("battery staple", right), add(PASSWORD, "000000")

    assert no_password[0] == no_code[0] == 422
    assert "That is not your password." in no_password[1]
    assert "Enter the code that the app shows now" in no_code[1]
    assert secret_on(no_code[1]) == phone.secret
    assert not Authenticator.objects.exists()
    assert len(codes_on(add(PASSWORD, right)[1])) == 10
    assert add(PASSWORD, right)[0] == 409
    assert [e.source for e in entries("user.second_factor_added")] == ["ui"]


def test_the_app_reads_the_secret_as_a_link_and_as_a_picture(anna: User) -> None:
    client, _ = with_password()
    nothing_yet = client.get("/second-factor/qr.svg").status_code
    page = client.get("/second-factor").content.decode()

    drawing = client.get("/second-factor/qr.svg")

    assert nothing_yet == 404
    assert (
        f'href="otpauth://totp/anna?secret={secret_on(page)}'
        '&amp;issuer=Poisonweb%20local"' in page
    )
    assert 'src="/second-factor/qr.svg"' in page
    assert drawing["Content-Type"] == "image/svg+xml"
    assert drawing["Cache-Control"] == "no-store"
    assert b"<path" in drawing.content


def test_a_change_of_the_factor_ends_the_other_sessions(anna: User, time: Time) -> None:
    here, there = with_password()[0], with_password()[0]

    add_factor(here, time.now)

    assert (is_in(here), is_in(there)) == (True, False)


def proof(phone: Phone, moment: datetime, **changes: str) -> dict[str, str]:
    return {"password": PASSWORD, "code": phone.code(moment), **changes}


@pytest.fixture
def at_home(phone: Phone, time: Time) -> Client:
    """Return anna's client, signed in by a code that is used up."""
    client, _ = with_password()
    enter(client, phone.code(time.now))
    time.go_on()
    return client


@pytest.mark.parametrize("path", ["recovery-codes", "remove"])
def test_a_change_needs_the_password_and_a_code(
    at_home: Client, phone: Phone, time: Time, path: str
) -> None:
    changes = [{"password": "battery staple"}, {"code": "000000"}, {"code": ""}]

    answers = [
        at_home.post(f"/second-factor/{path}", proof(phone, time.now, **change))
        for change in changes
    ]

    assert [answer.status_code for answer in answers] == [422] * 3
    assert Authenticator.objects.count() == 2
    wrong = [entry.detail for entry in entries("user.sign_in_failed")]
    assert [(each["of"], each["page"]) for each in wrong] == [
        ("password", "Second factor"),
        ("code", "Second factor"),
    ]


def test_new_recovery_codes_replace_the_old_ones(
    at_home: Client, phone: Phone, time: Time
) -> None:
    page = at_home.post("/second-factor/recovery-codes", proof(phone, time.now))
    new_codes = codes_on(page.content.decode())

    assert len(new_codes) == 10
    assert not set(new_codes) & set(phone.recovery_codes)
    assert enter(with_password()[0], phone.recovery_codes[0]) == 200
    assert enter(with_password()[0], new_codes[0]) == 302
    assert len(entries("user.recovery_codes_made")) == 1


def test_a_factor_that_is_removed_is_asked_for_no_more(
    at_home: Client, phone: Phone, time: Time
) -> None:
    answer = at_home.post("/second-factor/remove", proof(phone, time.now))
    client, signed_in = with_password()

    assert (answer.status_code, answer["Location"]) == (302, "/second-factor")
    assert signed_in["Location"] == "/"
    assert is_in(client)
    assert is_in(at_home)
    [entry] = entries("user.second_factor_removed")
    assert (entry.actor, entry.subject) == ("user:anna", "user:anna")


def test_an_admin_takes_a_lost_factor_away(at_home: Client) -> None:
    said = StringIO()
    call_command("remove_second_factor", "anna", stdout=said)

    assert "anna signs in with the password alone" in said.getvalue()
    assert not Authenticator.objects.exists()
    assert not is_in(at_home)
    assert is_in(with_password()[0])
    [entry] = entries("user.second_factor_removed")
    assert entry.actor == "system:command line"


@pytest.mark.parametrize(
    ("name", "said"),
    [("bert", "there is no person bert"), ("anna", "anna has no second factor")],
)
def test_a_factor_that_is_not_there_cannot_be_removed(
    anna: User, name: str, said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        call_command("remove_second_factor", name)


@pytest.mark.usefixtures("required")
def test_who_must_have_a_factor_gets_to_nothing_else_before(
    anna: User, time: Time
) -> None:
    client, _ = with_password()
    paths = ("/", "/messages", "/audit", "/api/v1/docs", "/nowhere")

    answers = [client.get(path) for path in paths]
    page = client.get("/second-factor")
    api = client.get("/api/v1/problems")

    to_factor = [answer.get("Location") for answer in answers[:-1]]
    assert to_factor == ["/second-factor"] * 4
    assert answers[-1].status_code == 404
    assert api.status_code == 403
    assert "Add a second factor" in api.json()["detail"]
    assert client.get("/second-factor/qr.svg").status_code == 200
    assert client.post("/preferences", {"theme": "dark"}).cookies["pw_theme"].value
    assert '<a href="/messages"' not in page.content.decode()

    add_factor(client, time.now)

    assert client.get("/messages").status_code == 200
    assert client.get("/api/v1/problems").status_code == 200


@pytest.mark.usefixtures("required")
def test_who_must_have_a_factor_may_sign_out_without_one(anna: User) -> None:
    client, _ = with_password()
    form = form_on(client.get("/second-factor"), button="Sign out")

    form.press(client)

    assert form.action == "/sign-out"
    assert client.get("/")["Location"] == "/sign-in?next=/"


@pytest.mark.usefixtures("required")
def test_a_role_that_is_not_named_needs_no_factor(time: Time) -> None:
    person("ben", Role.VIEWER)

    assert is_in(with_password("ben")[0])


@pytest.mark.usefixtures("required")
def test_who_removes_a_factor_that_they_must_have_adds_another(
    at_home: Client, phone: Phone, time: Time
) -> None:
    at_home.post("/second-factor/remove", proof(phone, time.now))
    time.go_on()

    assert not is_in(at_home)
    add_factor(at_home, time.now)
    assert is_in(at_home)


@pytest.mark.django_db(transaction=True)
def test_of_guesses_sent_at_once_no_more_are_made_than_one_by_one(
    anna: User, time: Time
) -> None:
    add_factor(with_password()[0], time.now)

    are_checked = together(12, lambda _: _guess(anna))

    assert are_checked.count(True) == 5


def _guess(user: User) -> bool:
    """Send a wrong code; return whether it was checked."""
    attempt = SignInAttempt(address="192.0.2.9", account=user.username, of="code")
    try:
        second_factor.prove(user=user, code="000000", attempt=attempt, now=BEGAN)
    except TooManySignIns:
        return False
    else:
        return True
