"""The settings of an installation behind TLS, as Django's own checks see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = ("/", "/sign-in", "/api/v1/topics", "/metrics", "/healthz", "/readyz")
# Postgres is not needed: a redirect comes before anybody asks it.
ASK = f"""
import django
django.setup()
from django.test import Client
for address in {ADDRESSES}:
    for scheme in ("http", "https"):
        headers = {{"Host": "poison.example.com", "X-Forwarded-Proto": scheme}}
        answer = Client().get(address, headers=headers)
        print(address, scheme, answer.status_code, answer.get("Location", "-"))
"""


@pytest.fixture
def behind_tls(tmp_path: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if "POISON" not in name},
        "DJANGO_SETTINGS_MODULE": "poisonweb.settings",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
        "POISONWEB_SECRET_KEY": "".join(chr(97 + n % 26) for n in range(60)),
        "POISONWEB_SECURE": "1",
        "POISONWEB_ALLOWED_HOSTS": "poison.example.com",
        "POISONWEB_VAR": str(tmp_path),
    }


def test_the_deployment_checks_find_nothing(behind_tls: dict[str, str]) -> None:
    words = [
        sys.executable,
        "manage.py",
        "check",
        "--deploy",
        "--fail-level",
        "WARNING",
    ]

    ended = subprocess.run(
        words, cwd=ROOT, env=behind_tls, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_secret_key_of_a_new_installation_is_long_enough(
    behind_tls: dict[str, str], tmp_path: Path
) -> None:
    words = [sys.executable, "manage.py", "check", "--deploy"]
    environment = {**behind_tls}
    del environment["POISONWEB_SECRET_KEY"]

    ended = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert len((tmp_path / "secret-key").read_text()) == 64
    assert "W009" not in ended.stderr


def test_without_tls_the_deployment_checks_name_what_is_missing(
    behind_tls: dict[str, str],
) -> None:
    words = [sys.executable, "manage.py", "check", "--deploy"]

    ended = subprocess.run(
        words,
        cwd=ROOT,
        env={**behind_tls, "POISONWEB_SECURE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "set POISONWEB_SECURE=1" in ended.stderr
    assert "1 issue" in ended.stderr


def test_behind_tls_pages_asked_by_http_are_redirected_and_programs_are_not(
    behind_tls: dict[str, str],
) -> None:
    said = subprocess.check_output(
        [sys.executable, "-c", ASK], cwd=ROOT, env=behind_tls, text=True
    )
    answers = [line.split() for line in said.splitlines()]
    redirected = {
        (address, scheme): location
        for address, scheme, status, location in answers
        if status == "301"
    }

    assert redirected == {
        ("/", "http"): "https://poison.example.com/",
        ("/sign-in", "http"): "https://poison.example.com/sign-in",
    }
