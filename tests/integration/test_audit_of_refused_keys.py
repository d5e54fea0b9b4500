"""The use of an ended key is audited once an hour, and logged as a warning."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import pytest
from django.test import Client

from apps.audit.models import Entry
from apps.core import clock
from apps.core.actor import Actor
from apps.team import refused_api_key_audit, services
from apps.team.refused_api_key_audit import RECORDED_EVERY
from apps.team.rights import Scope

pytestmark = pytest.mark.django_db

HERE = "192.0.2.1"
ADMIN = Actor.user("anna")


def key(name: str, *, expires_at: datetime | None = None) -> str:
    new_key = services.create_api_key(
        name=name,
        scopes=[Scope.POISONS_READ],
        expires_at=expires_at,
        actor=ADMIN,
        now=clock.now() - timedelta(days=2),
    )
    return new_key.secret


def ask(secret: str) -> int:
    headers = {"Authorization": f"Bearer {secret}"}
    return Client(REMOTE_ADDR=HERE).get("/api/v1/poisons", headers=headers).status_code


def refusals() -> list[tuple[str, str, str, dict[str, object]]]:
    entries = Entry.objects.filter(action="api_key.refused").order_by("seq")
    return [(e.subject, e.actor, e.reason, e.detail) for e in entries]


def test_a_key_that_ended_is_refused_and_audited_once_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = clock.now()
    revoked, expired = key("billing"), key("reports", expires_at=began)
    services.revoke_api_key(name="billing", actor=ADMIN, now=began)

    def ask_all(after: timedelta) -> list[int]:
        monkeypatch.setattr(clock, "now", lambda: began + after)
        return [ask(revoked), ask(expired)]

    statuses = [
        *ask_all(timedelta()),
        *ask_all(RECORDED_EVERY / 2),
        *ask_all(RECORDED_EVERY * 2),
    ]

    assert statuses == [401] * 6
    each = [
        ("api_key:billing", "system:api-keys", "revoked", {"address": HERE}),
        ("api_key:reports", "system:api-keys", "expired", {"address": HERE}),
    ]
    assert refusals() == [*each, *each]


def test_an_unknown_secret_is_logged_without_quoting_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sparing,) = refused_api_key_audit.log.filters
    # Other tests may have used up the lines of this minute.
    monkeypatch.setattr(sparing, "_window_ends_at", float("-inf"))
    with caplog.at_level(logging.WARNING, logger="apps.team.refused_api_key_audit"):
        status = ask("pw_local_guessed")

    assert status == 401
    assert refusals() == []
    assert f"refused, from {HERE}" in caplog.text
    assert "guessed" not in caplog.text
