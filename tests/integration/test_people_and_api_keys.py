"""People and keys: their rights, and that a key's secret is shown once."""

from __future__ import annotations

import io
import time
from datetime import datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.core.errors import Invalid
from apps.team import services
from apps.team.models import ApiKey, User
from apps.team.rights import Principal, Role, Scope

pytestmark = pytest.mark.django_db

ANNA = Actor.user("anna")


def make(now: datetime, **changes: object) -> services.NewKey:
    values = {"name": "ci", "scopes": ["poisons:read"], "actor": ANNA, "now": now}
    return services.create_api_key(**{**values, **changes})  # type: ignore[arg-type]


def test_only_the_digest_of_a_key_is_stored(now: datetime) -> None:
    new_key = make(now)

    assert new_key.secret.startswith("pw_local_")
    columns = ApiKey.objects.values_list("prefix", "digest").get()
    assert new_key.secret not in str(columns)
    assert services.recognise(secret=new_key.secret, now=now) == new_key.key
    assert services.recognise(secret=new_key.secret + "x", now=now) is None


def test_an_expired_or_revoked_key_is_not_recognised(now: datetime) -> None:
    short = make(now, expires_at=now + timedelta(hours=1))
    revoked = make(now, name="old")
    services.revoke_api_key(name="old", actor=ANNA, now=now)

    assert services.recognise(secret=short.secret, now=now) is not None
    later = now + timedelta(hours=1)
    assert services.recognise(secret=short.secret, now=later) is None
    assert services.recognise(secret=revoked.secret, now=now) is None


def test_creating_and_revoking_a_key_are_audited(now: datetime) -> None:
    make(now)
    services.revoke_api_key(name="ci", actor=ANNA, now=now)
    again = services.revoke_api_key(name="ci", actor=ANNA, now=now)

    actions = list(Entry.objects.order_by("seq").values_list("action", flat=True))
    assert (actions, again) == (["api_key.created", "api_key.revoked"], False)


@pytest.mark.parametrize(
    "changes",
    [
        *({"scopes": ["everything"]}, {"scopes": []}),
        *({"name": ""}, {"name": "x" * 101}),
        *({"topics": []}, {"topics": ["a"] * 101}),
        *({"topics": ["a\nb"]}, {"topics": ["x" * 256]}),
    ],
)
def test_an_invalid_key_is_refused(now: datetime, changes: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        make(now, **changes)


def test_a_key_name_in_use_is_refused(now: datetime) -> None:
    make(now)

    with pytest.raises(Invalid, match="name"):
        make(now)


@pytest.mark.parametrize(
    ("patterns", "topic", "is_seen"),
    [
        (("*",), "anything at all", True),
        (("orders",), "orders", True),
        (("orders",), "orders.eu", False),
        (("orders.*",), "orders.eu", True),
        (("orders.*",), "ordersXeu", False),  # a dot is a dot
        (("a[b]*",), "a[b]c", True),  # nothing but * is special
        (("a*b*c",), "a.b.b.c", True),
        (("a*b*c",), "a.c.b", False),
        (("ab*ba",), "aba", False),  # the two ends do not overlap
        (("*a*",), "bab", True),
        (("",), "orders", False),
        ((), "orders", False),
    ],
)
def test_patterns_of_topics(
    patterns: tuple[str, ...], topic: str, is_seen: bool
) -> None:
    principal = Principal(actor=ANNA, scopes=frozenset(), topics=patterns)

    assert principal.sees(topic) is is_seen


def test_no_pattern_of_topics_takes_long(now: datetime) -> None:
    hostile = "*a" * 127 + "b"
    principal = Principal(actor=ANNA, scopes=frozenset(), topics=(hostile,))
    began = time.thread_time()

    assert not principal.sees("a" * 255)
    assert time.thread_time() - began < 1


def test_reading_bodies_is_a_right_of_its_own() -> None:
    admin = User(username="a", role=Role.ADMIN.value)
    reader = User(username="v", role=Role.VIEWER.value, reads_bodies=True)

    assert not admin.principal.may(Scope.BODIES_READ)
    assert reader.principal.may(Scope.BODIES_READ)
    assert not reader.principal.may(Scope.OPERATIONS_WRITE)


def test_the_command_prints_a_key_that_works(now: datetime) -> None:
    out = io.StringIO()

    call_command(
        "create_api_key", "ci", scope=["capture:write"], topic=["a"], stdout=out
    )

    key = services.recognise(secret=out.getvalue().strip(), now=now)
    assert key is not None
    assert (key.scopes, key.topics) == (["capture:write"], ["a"])
    with pytest.raises(CommandError, match="name"):
        call_command("create_api_key", "ci", scope=["capture:write"])


def test_people_are_added_with_a_role(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse\n"))
    monkeypatch.setattr("os.isatty", lambda _: False)

    call_command("create_user", "vera", role="viewer")

    vera = User.objects.get(username="vera")
    assert vera.check_password("correct horse")
    assert (vera.role, vera.reads_bodies) == ("viewer", False)


def person(now: datetime, name: str = "anna", role: Role = Role.VIEWER) -> User:
    return services.create_user(
        username=name,
        password="correct horse",
        role=role,
        reads_bodies=False,
        actor=ANNA,
        now=now,
    )


def change(*words: str) -> None:
    call_command("change_user", *words, stdout=io.StringIO())


def test_a_persons_role_and_right_to_read_bodies_can_be_changed(
    now: datetime,
) -> None:
    person(now)

    change("anna", "--role", "operator", "--reads-bodies")
    change("anna", "--role", "operator")

    user = User.objects.get()
    [entry] = Entry.objects.filter(action="user.altered")
    assert (user.role, user.reads_bodies) == ("operator", True)
    assert entry.subject == "user:anna"
    assert entry.detail == {
        "before": {"role": "viewer", "reads_bodies": False, "is_active": True},
        "after": {"role": "operator", "reads_bodies": True, "is_active": True},
    }


def test_a_disabled_person_is_signed_out_and_cannot_sign_in(
    now: datetime,
) -> None:
    person(now, "ada", Role.ADMIN)
    person(now)
    client = Client()
    form = {"username": "anna", "password": "correct horse"}
    client.post("/sign-in", form)
    before = client.get("/help").status_code

    change("anna", "--disable")
    after, again = client.get("/help").status_code, client.post("/sign-in", form)
    change("anna", "--enable")

    assert (before, after, again.status_code) == (200, 302, 200)
    assert client.post("/sign-in", form).status_code == 302


@pytest.mark.parametrize("words", [("--disable",), ("--role", "viewer")])
def test_the_last_admin_cannot_be_demoted_or_disabled(
    now: datetime, words: tuple[str, ...]
) -> None:
    person(now, "ada", Role.ADMIN)
    person(now)

    with pytest.raises(CommandError, match="ada is the last admin: make another one"):
        change("ada", *words)

    assert User.objects.get(username="ada").is_active
    change("anna", "--role", "admin")
    change("ada", *words)


def test_ending_sessions_ends_only_earlier_ones(now: datetime) -> None:
    person(now)
    clients = [Client() for _ in range(3)]
    form = {"username": "anna", "password": "correct horse"}
    for client in clients[:2]:
        client.post("/sign-in", form)

    change("anna", "--end-sessions")
    clients[2].post("/sign-in", form)

    statuses = [client.get("/help").status_code for client in clients]
    assert statuses == [302, 302, 200]
    assert Entry.objects.filter(action="user.sessions_ended").count() == 1


def test_a_new_password_ends_sessions_and_is_checked(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    person(now)
    client = Client()
    client.post("/sign-in", {"username": "anna", "password": "correct horse"})
    answers = iter(["short", "another horse"])
    monkeypatch.setattr(
        "apps.team.management.commands.change_user.ask_for_password",
        lambda: next(answers),
    )

    with pytest.raises(CommandError, match="too short"):
        change("anna", "--password")
    status = client.get("/help").status_code
    change("anna", "--password")

    assert (status, client.get("/help").status_code) == (200, 302)
    assert User.objects.get().check_password("another horse")


def test_changing_a_missing_person_is_refused() -> None:
    with pytest.raises(CommandError, match="there is no person anna"):
        change("anna", "--disable")


def test_a_key_is_revoked_by_command_once(now: datetime) -> None:
    new_key = make(now)

    call_command("revoke_api_key", "ci", stdout=io.StringIO())

    assert services.recognise(secret=new_key.secret, now=now) is None
    with pytest.raises(CommandError, match="no key ci that could be ended"):
        call_command("revoke_api_key", "ci")


@pytest.mark.parametrize(
    ("text", "expires"),
    [("90d", timedelta(days=90)), ("2999-01-31", timedelta(days=300_000))],
)
def test_a_key_may_expire(text: str, expires: timedelta) -> None:
    words = ("--scope", "poisons:read", "--expires", text)
    call_command("create_api_key", "ci", *words, stdout=io.StringIO())

    at = ApiKey.objects.get().expires_at
    assert at is not None
    lifetime = at - clock.now()
    assert abs(lifetime - expires) < timedelta(days=60_000 if "-" in text else 1)


def test_an_invalid_day_is_refused() -> None:
    words = ("--scope", "poisons:read", "--expires", "soon")

    with pytest.raises(CommandError, match="'soon' is no day: write 2027-01-31 or 90d"):
        call_command("create_api_key", "ci", *words)


def test_keys_are_listed_with_what_they_may_do(now: datetime) -> None:
    make(now, topics=["orders.*"])
    make(now, name="old", expires_at=now - timedelta(days=1))
    make(now, name="gone")
    services.revoke_api_key(name="gone", actor=ANNA, now=now)
    out = io.StringIO()

    call_command("list_api_keys", stdout=out)

    rows = [line.split("\t") for line in out.getvalue().splitlines()]
    assert rows[1] == ["ci", "usable", "poisons:read", "orders.*", "-", "-"]
    assert [row[:2] for row in rows[2:]] == [["gone", "revoked"], ["old", "expired"]]


INVISIBLE = ["a\nb", "a\rb", "\x1b[1m", "a\x85b", "\u202eadmin", "a\u2028b", "a\u200bb"]


@pytest.mark.parametrize("name", ["", " admin", "admin ", "x" * 151, *INVISIBLE])
def test_names_with_invisible_characters_are_refused(now: datetime, name: str) -> None:
    with pytest.raises(Invalid, match="username: give up to 150 characters"):
        person(now, name)
    with pytest.raises(Invalid, match="name: give up to 100 characters"):
        make(now, name=name)


def test_names_of_people_differ_in_more_than_capital_letters(now: datetime) -> None:
    person(now, "anna")

    with pytest.raises(Invalid, match="already a person called Anna"):
        person(now, "Anna")


@pytest.mark.parametrize(
    "password",
    ["short", "password1", "poisonweb", "PoisonWeb-2026!", "anna.anna", "Admin12345"],
)
def test_an_easily_guessed_password_is_refused_everywhere(
    now: datetime, password: str
) -> None:
    anna = person(now, "anna.anna")

    with pytest.raises(Invalid, match=r"^password: "):
        services.set_password(user=anna, password=password, actor=ANNA, now=now)
    with pytest.raises(Invalid, match=r"^password: "):
        services.create_user(
            username="bertolt",
            password=password.replace("anna.anna", "bertolt.1"),
            role=Role.VIEWER,
            reads_bodies=False,
            actor=ANNA,
            now=now,
        )

    assert not User.objects.filter(username="bertolt").exists()
    assert anna.check_password("correct horse")
