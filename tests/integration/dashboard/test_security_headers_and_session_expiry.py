"""The headers of responses, and the expiry of sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from apps.audit.models import Entry
from apps.core import clock
from apps.team.sessions import IDLE, LONGEST
from tests.failure_report_builders import poisons
from tests.integration.dashboard.conftest import SignIn

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[3]
HOUR = timedelta(hours=1)
SECURE = """
import django
django.setup()
from django.conf import settings as s
print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SECURE_HSTS_SECONDS > 10**7,
      s.SESSION_COOKIE_SECURE, s.SESSION_COOKIE_PATH, s.SESSION_COOKIE_DOMAIN)
"""


@pytest.mark.parametrize("path", ["/", "/sign-in", "/healthz", "/nowhere", "/messages"])
def test_each_answer_denies_features_and_other_origins(anna: Client, path: str) -> None:
    response = anna.get(path)

    assert "camera=()" in response["Permissions-Policy"]
    assert response["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "no-store" in response["Cache-Control"]


def test_pages_with_bodies_are_kept_by_no_cache(anna: Client, now: datetime) -> None:
    (poison,) = poisons(now, 1)
    path = f"/messages/{poison.pk}"

    answers = [anna.get(path), anna.post(f"{path}/reveal"), anna.post(f"{path}/body")]

    assert [answer["Cache-Control"] for answer in answers] == ["no-store"] * 3


def test_behind_tls_cookies_belong_to_the_host_alone(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if "POISON" not in name},
        "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
        "POISONWEB_SECURE": "1",
        "POISONWEB_VAR": str(tmp_path),
    }

    said = subprocess.check_output(
        [sys.executable, "-c", SECURE], cwd=ROOT, env=environment, text=True
    )

    assert said.split() == [
        "__Host-pw_session",
        "__Host-pw_csrf",
        *("True",) * 2,
        "/",
        "None",
    ]


def test_a_session_ends_after_twelve_hours_without_a_page(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now()
    client = sign_in()

    def at(after: timedelta, **headers: str) -> int:
        monkeypatch.setattr(clock, "now", lambda: began + after)
        return client.get("/help", headers=headers).status_code

    used = [at(11 * HOUR), at(22 * HOUR)]
    refreshed = [at((22 + hour) * HOUR, HX_Request="true") for hour in (5, 10, 12)]
    ended = at((22 + 13) * HOUR, HX_Request="true")

    assert IDLE == 12 * HOUR
    assert used == [200, 200]
    assert refreshed == [200, 200, 200]
    assert ended == 302
    assert not Session.objects.exists()
    # An expiry is no sign-out, and a GET writes nothing to the trail.
    assert not Entry.objects.filter(action="user.signed_out").exists()


def test_a_session_ends_two_weeks_after_its_sign_in_whatever_was_done(
    sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock.now()
    client = sign_in()

    def at(after: timedelta) -> int:
        monkeypatch.setattr(clock, "now", lambda: began + after)
        return client.get("/help").status_code

    used = {at(number * 10 * HOUR) for number in range(1, 34)}
    last, over = at(14 * 24 * HOUR), at(14 * 24 * HOUR + timedelta(seconds=1))

    assert LONGEST == 14 * 24 * HOUR
    assert used == {200}
    assert (last, over) == (200, 302)


def test_a_page_takes_nothing_from_other_origins_nor_from_its_own_text(
    anna: Client,
) -> None:
    policy = anna.get("/")["Content-Security-Policy"]
    sources = {word for rule in policy.split(";") for word in rule.split()[1:]}

    assert sources == {"'self'", "'none'"}
