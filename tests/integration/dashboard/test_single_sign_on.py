"""Sign-in through an OpenID provider: accounts, roles and refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.conf import settings
from django.db import connection
from django.test import Client, override_settings

from apps.core import clock
from apps.core.actor import Actor
from apps.team import openid, sessions, single_sign_on_accounts
from apps.team.models import User
from apps.team.rights import Role
from apps.team.services import alter_user, create_user
from apps.team.single_sign_on_accounts import ProviderIdentity
from poisonweb.embedded.free_ports import free_port
from tests import oidc_provider_process
from tests.audit_entries import entries
from tests.integration.dashboard.pages import is_in
from tests.oidc_oddities import CONFIGURATION, ODD
from tests.oidc_provider_process import Provider
from tests.races import together

pytestmark = [pytest.mark.together, pytest.mark.django_db]

BACKENDS = [*settings.AUTHENTICATION_BACKENDS, "apps.team.backends.ProviderBackend"]


@pytest.fixture(scope="module")
def server() -> Iterator[Provider]:
    with oidc_provider_process.provider() as started:
        yield started


@pytest.fixture
def work(server: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Return the configured provider, which knows anna, a member of `ops`."""
    server.misbehave("")
    server.knows("anna-1", preferred_username="anna", groups=["ops", "cooks"])
    openid._descriptions.clear()
    # A busy machine is no provider that is away.
    for limit in ("CONNECT_SECONDS", "READ_SECONDS", "ANSWER_SECONDS"):
        monkeypatch.setattr(openid, limit, 60.0)
    with override_settings(
        POISONWEB_OIDC=server.settings, AUTHENTICATION_BACKENDS=BACKENDS
    ):
        yield server


def person(now: datetime, name: str) -> User:
    return create_user(
        username=name,
        password="correct horse",
        role=Role.ADMIN,
        reads_bodies=True,
        actor=Actor.system("test"),
        now=now,
    )


def said(answer: Any) -> tuple[int, str]:
    """Return the status of a page, and its explanation."""
    page = answer.content.decode()
    assert "Go to the overview" in page
    return answer.status_code, page


def test_a_member_of_a_group_signs_in_with_its_role(work: Provider) -> None:
    client = Client(REMOTE_ADDR="192.0.2.1")

    led = work.sign_in(client, "anna-1", next_url="/audit")

    user = User.objects.get()
    assert (led.status_code, led["Location"]) == (302, "/audit")
    assert is_in(client)
    assert (user.username, user.role, user.reads_bodies) == ("anna", "operator", False)
    assert not user.has_usable_password()
    [entry] = entries("user.created")
    assert entry.detail["issuer"] == work.url
    assert entry.detail["subject"] == "anna-1"
    [came] = entries("user.signed_in")
    assert (came.actor, came.detail) == (
        "user:anna",
        {"address": "192.0.2.1", "by": "provider"},
    )


def test_next_time_it_is_the_same_account_whatever_the_name(work: Provider) -> None:
    work.sign_in(Client(), "anna-1")
    work.knows("anna-1", preferred_username="anna.smith", groups=["ops"])
    client = Client()

    work.sign_in(client, "anna-1")

    assert is_in(client)
    assert User.objects.get().username == "anna"


def test_what_a_provider_says_is_not_kept(work: Provider) -> None:
    work.knows("anna-1", preferred_username="anna", email="a@x.test", groups=["ops"])

    for _ in range(2):
        work.sign_in(Client(), "anna-1")

    assert SocialAccount.objects.get().extra_data == {}
    assert User.objects.get().email == ""
    assert not SocialToken.objects.exists()


@pytest.mark.parametrize("groups", [[], ["cooks"], None, "cooks", {"ops": 1}, 7])
def test_a_person_without_a_group_is_refused(work: Provider, groups: Any) -> None:
    work.knows("ben-1", preferred_username="ben", groups=groups)
    client = Client()

    status, page = said(work.sign_in(client, "ben-1"))

    assert status == 403
    assert "in no group that may use Poisonweb" in page
    assert not is_in(client)
    assert not User.objects.exists()
    assert entries("user.sign_in_failed")[0].subject == "user:?"


def test_of_several_groups_the_most_powerful_counts(work: Provider) -> None:
    work.knows("anna-1", preferred_username="anna", groups=["ops", "leads", "readers"])

    work.sign_in(Client(), "anna-1")

    assert User.objects.get().role == "admin"


def test_the_role_follows_the_groups_at_each_sign_in(work: Provider) -> None:
    work.knows("anna-1", preferred_username="anna", groups=["leads"])
    work.sign_in(Client(), "anna-1")
    work.knows("anna-1", preferred_username="anna", groups="readers")

    work.sign_in(Client(), "anna-1")

    assert User.objects.get().role == "viewer"
    [altered] = entries("user.altered")
    assert altered.actor == "system:single sign-on"
    assert altered.detail["after"]["role"] == "viewer"


def test_who_left_all_groups_is_out_everywhere(work: Provider) -> None:
    before, after = Client(), Client()
    work.sign_in(before, "anna-1")
    work.knows("anna-1", preferred_username="anna", groups=[])

    status, _ = said(work.sign_in(after, "anna-1"))

    assert status == 403
    assert not is_in(after)
    assert not is_in(before)
    assert entries("user.sign_in_failed")[0].subject == "user:anna"


def test_who_an_admin_disabled_stays_so(work: Provider, now: datetime) -> None:
    work.sign_in(Client(), "anna-1")
    alter_user(username="anna", is_active=False, actor=Actor.system("test"), now=now)
    client = Client()

    status, page = said(work.sign_in(client, "anna-1"))

    assert (status, User.objects.get().is_active) == (403, False)
    assert "This account is disabled" in page
    assert not is_in(client)


@pytest.mark.parametrize("name", ["anna", "ANNA"])
def test_a_name_or_an_address_never_leads_to_an_account_that_is_there(
    work: Provider, now: datetime, name: str
) -> None:
    there = person(now, name)
    User.objects.update(email="a@x.test")
    claims = {"email": "a@x.test", "email_verified": True, "groups": ["ops"]}
    work.knows("anna-1", preferred_username="anna", **claims)
    client = Client()

    status, page = said(work.sign_in(client, "anna-1"))

    assert status == 409
    assert "There is another account called anna here already" in page
    assert not is_in(client)
    assert User.objects.get() == there


def test_another_issuer_s_subject_is_another_person(work: Provider) -> None:
    work.sign_in(Client(), "anna-1")
    SocialAccount.objects.update(provider="https://other.example")

    status, _ = said(work.sign_in(Client(), "anna-1"))

    assert status == 409


@pytest.mark.parametrize("name", ["", "an\u202ena", "x" * 151, " anna", "system:anna"])
def test_a_name_that_cannot_be_used_is_refused_or_replaced(
    work: Provider, name: str
) -> None:
    work.knows("anna-1", preferred_username=name, groups=["ops"])

    answer = work.sign_in(Client(), "anna-1")

    names = list(User.objects.values_list("username", flat=True))
    assert (answer.status_code, names) == ((302, ["anna-1"]) if not name else (409, []))


def test_a_forged_state_is_a_page_that_says_so(work: Provider) -> None:
    client, other = Client(), Client()
    begun = client.post("/sign-in/provider")
    back = work.agree(begun["Location"], "anna-1")
    forged = re.sub("state=[^&]+", "state=forged", back)

    answers = [
        client.get(forged),
        client.get("/sign-in/provider/callback"),
        other.get(back),
    ]

    for answer in answers:
        status, page = said(answer)
        assert status == 403
        assert "was not begun in this browser" in page
    assert not User.objects.exists()


def test_a_state_is_good_once(work: Provider) -> None:
    client = Client()
    begun = client.post("/sign-in/provider")
    back = work.agree(begun["Location"], "anna-1")

    assert client.get(back).status_code == 302
    assert client.get(back).status_code == 403


def test_who_denies_at_the_provider_may_begin_again(work: Provider) -> None:
    client = Client()
    begun = client.post("/sign-in/provider")

    status, page = said(client.get(work.deny(begun["Location"])))

    assert status == 403
    assert "You did not agree at the provider" in page


@pytest.mark.parametrize("next_url", ["https://evil.example/", "//evil.example", "x:y"])
def test_the_way_back_leads_to_no_other_site(work: Provider, next_url: str) -> None:
    assert work.sign_in(Client(), "anna-1", next_url=next_url)["Location"] == "/"


def test_the_address_decides_neither_what_is_asked_nor_what_is_done(
    work: Provider,
) -> None:
    plain = Client().post("/sign-in/provider")["Location"]

    more = Client().post(
        "/sign-in/provider?process=connect&scope=admin&auth_params=prompt%3Dnone"
    )["Location"]

    def shape(address: str) -> str:
        values = "state=[^&]+|code_challenge=[^&]+|scope=[^&]+"
        return re.sub(values, "", address)

    assert shape(more) == shape(plain)
    assert "admin" not in more


@pytest.mark.parametrize("how", sorted(ODD))
def test_a_provider_that_misbehaves_is_a_page_that_says_so(
    work: Provider, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    work.misbehave(how)
    client = Client()

    answer = client.post("/sign-in/provider")
    if ODD[how][0] != CONFIGURATION:
        answer = client.get(work.agree(answer["Location"], "anna-1"))

    status, _ = said(answer)
    assert status == 503
    assert "the OpenID provider" in caplog.text
    assert not User.objects.exists()


def test_a_provider_that_is_away_is_a_page_that_says_so(work: Provider) -> None:
    away = Provider(f"http://127.0.0.1:{free_port()}")

    with override_settings(POISONWEB_OIDC=away.settings):
        status, page = said(Client().post("/sign-in/provider"))

    assert status == 503
    assert "The provider does not answer" in page


def test_a_provider_that_goes_away_meanwhile_is_a_page_that_says_so(
    work: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    back = work.agree(client.post("/sign-in/provider")["Location"], "anna-1")
    description = openid._description(work.url)
    dead_url = f"http://127.0.0.1:{free_port()}/token"
    changed = {**description, "token_endpoint": dead_url}
    monkeypatch.setattr(openid, "_description", lambda _: changed)

    status, _ = said(client.get(back))

    assert status == 503


@pytest.mark.django_db(transaction=True)
def test_no_session_of_postgres_is_held_while_the_provider_is_asked(
    work: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_session = []
    whole = openid._whole

    def watched(answer: Any) -> Any:
        has_session.append(connection.connection is not None)
        return whole(answer)

    monkeypatch.setattr(openid, "_whole", watched)

    work.sign_in(Client(), "anna-1")

    assert has_session == [False] * 3


def test_too_many_sign_ins_at_the_provider_at_once_are_refused(
    work: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openid, "LONGEST_WAIT_SECONDS", 0.05)
    for _ in range(openid.AT_ONCE):
        openid._slots.acquire()
    try:
        status, _ = said(Client().post("/sign-in/provider"))
    finally:
        for _ in range(openid.AT_ONCE):
            openid._slots.release()

    assert status == 503
    assert Client().post("/sign-in/provider").status_code == 302


@pytest.mark.django_db(transaction=True)
def test_two_sign_ins_at_once_create_one_account(work: Provider, now: datetime) -> None:
    anna = ProviderIdentity(
        issuer=work.url, subject="anna-1", name="anna", groups=frozenset({"ops"})
    )

    ids = together(8, lambda _: single_sign_on_accounts.admit(anna, now=now).pk)

    assert set(ids) == {User.objects.get().pk}
    assert len(entries("user.created")) == 1


def test_abandoned_sign_ins_are_pruned_soon(work: Provider, now: datetime) -> None:
    stranger, client = Client(), Client()
    stranger.post("/sign-in/provider")
    client.post("/sign-in/provider")
    work.sign_in(client, "anna-1")
    person(now, "ben")
    client.post("/sign-in/provider")

    pruned = sessions.prune(now=now + timedelta(minutes=11))

    assert pruned == 1
    assert is_in(client)


def test_a_sign_in_by_password_lasts_whatever_was_begun_before(
    work: Provider, now: datetime
) -> None:
    person(now, "ben")
    client = Client()
    client.post("/sign-in/provider")

    client.post("/sign-in", {"username": "ben", "password": "correct horse"})

    assert is_in(client)
    assert sessions.prune(now=now + timedelta(hours=11)) == 0


def test_a_session_by_the_provider_ends_after_half_a_day_at_work_or_not(
    work: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    work.sign_in(client, "anna-1")
    began = clock.now()
    monkeypatch.setattr(clock, "now", lambda: began + timedelta(hours=6))
    is_in(client)

    session = client.session

    assert session.get_expiry_date() <= began + openid.LONGEST_SESSION


def test_a_second_factor_is_the_provider_s_to_ask_for(work: Provider) -> None:
    client = Client()
    with override_settings(POISONWEB_SECOND_FACTOR=("operator",)):
        work.sign_in(client, "anna-1")

        page = client.get("/second-factor").content.decode()

        assert is_in(client)
        assert "A second factor is asked for there, not here." in page
        assert client.get("/api/v1/problems").status_code == 200


def test_without_a_provider_who_came_by_it_is_signed_out(work: Provider) -> None:
    client = Client()
    work.sign_in(client, "anna-1")

    with override_settings(POISONWEB_OIDC=None, AUTHENTICATION_BACKENDS=BACKENDS[:1]):
        assert not is_in(client)


def test_the_sign_in_page_has_a_button_that_its_policy_lets_lead_there(
    work: Provider,
) -> None:
    answer = Client().get("/sign-in?next=/audit")
    page = answer.content.decode()

    assert "Sign in with Work" in page
    assert page.count('name="next" value="/audit"') == 2
    policy = answer["Content-Security-Policy"]
    assert f"form-action 'self' {work.url};" in f"{policy};"
    assert work.url not in Client().get("/nowhere")["Content-Security-Policy"]


def test_without_a_provider_there_is_no_button_and_no_way() -> None:
    answer = Client().get("/sign-in")

    assert "Sign in with" not in answer.content.decode()
    assert "form-action 'self';" in answer["Content-Security-Policy"] + ";"
    assert said(Client().post("/sign-in/provider"))[0] == 404
    assert said(Client().get("/sign-in/provider/callback"))[0] == 404
