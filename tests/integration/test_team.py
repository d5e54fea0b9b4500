"""People and keys: what each may do, and that a key's secret is shown once."""

from __future__ import annotations

import io
from datetime import datetime, timedelta

import pytest
from django.core.management import CommandError, call_command

from apps.audit.models import Entry
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


def test_only_the_digest_of_a_key_is_kept(now: datetime) -> None:
    made = make(now)

    assert made.secret.startswith("pw_local_")
    kept = ApiKey.objects.values_list("prefix", "digest").get()
    assert made.secret not in str(kept)
    assert services.recognise(secret=made.secret, now=now) == made.key
    assert services.recognise(secret=made.secret + "x", now=now) is None


def test_an_expired_or_revoked_key_is_nobody(now: datetime) -> None:
    short = make(now, expires_at=now + timedelta(hours=1))
    revoked = make(now, name="old")
    services.revoke_api_key(name="old", actor=ANNA, now=now)

    assert services.recognise(secret=short.secret, now=now) is not None
    later = now + timedelta(hours=1)
    assert services.recognise(secret=short.secret, now=later) is None
    assert services.recognise(secret=revoked.secret, now=now) is None


def test_making_and_revoking_are_on_the_trail(now: datetime) -> None:
    make(now)
    services.revoke_api_key(name="ci", actor=ANNA, now=now)
    again = services.revoke_api_key(name="ci", actor=ANNA, now=now)

    actions = list(Entry.objects.order_by("seq").values_list("action", flat=True))
    assert (actions, again) == (["api_key.created", "api_key.revoked"], False)


@pytest.mark.parametrize(
    "changes",
    [{"scopes": ["everything"]}, {"scopes": []}, {"name": ""}, {"name": "x" * 101}],
)
def test_a_key_that_makes_no_sense_is_refused(
    now: datetime, changes: dict[str, object]
) -> None:
    with pytest.raises(Invalid):
        make(now, **changes)


def test_a_name_is_given_once(now: datetime) -> None:
    make(now)

    with pytest.raises(Invalid, match="name"):
        make(now)


@pytest.mark.parametrize(
    ("patterns", "topic", "seen"),
    [
        (("*",), "anything at all", True),
        (("orders",), "orders", True),
        (("orders",), "orders.eu", False),
        (("orders.*",), "orders.eu", True),
        (("orders.*",), "ordersXeu", False),  # a dot is a dot
        (("a[b]*",), "a[b]c", True),  # nothing but * is special
        ((), "orders", False),
    ],
)
def test_patterns_of_topics(patterns: tuple[str, ...], topic: str, seen: bool) -> None:
    principal = Principal(actor=ANNA, scopes=frozenset(), topics=patterns)

    assert principal.sees(topic) is seen


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
