"""The page of the audit trail: what was decided, in sentences, and what proves it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from apps.audit import checkpointing
from apps.audit import services as audit
from apps.audit.models import LastCheckpoint
from apps.audit.services import Action
from apps.core.actor import Actor
from tests.integration.dashboard.conftest import SignIn

pytestmark = pytest.mark.django_db

ANNA = Actor.user("anna")


@pytest.fixture(autouse=True)
def var(settings: Settings, tmp_path: Path) -> None:
    settings.POISONWEB_VAR = tmp_path


@pytest.fixture
def reader(sign_in: SignIn) -> Client:
    return sign_in()


def page_of(client: Client, query: str = "") -> str:
    response = client.get(f"/audit{query}")
    assert response.status_code == 200
    return response.content.decode()


def decide(now: datetime) -> int:
    return audit.record(
        action=Action.KEY_REVOKED, subject="api_key:ci", actor=ANNA, now=now
    )


def test_the_page_says_that_no_checkpoint_was_taken(reader: Client) -> None:
    assert "No checkpoint was taken yet" in page_of(reader)


def test_the_page_shows_the_last_checkpoint(reader: Client, now: datetime) -> None:
    seq = decide(now)
    taken = checkpointing.take(now=now)
    assert taken is not None

    covered = page_of(reader)
    decide(now)
    grown = page_of(reader)

    assert f"Last checkpoint: entry {seq}, hash <code" in covered
    assert f"{taken.hash.hex()[:12]}…</code>" in covered
    assert "It covers every entry." in covered
    assert "1 newer entry is not covered yet." in grown
    assert 'role="alert"' not in covered + grown


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"signature": "forged"}, "is not signed with this installation"),
        ({"seq": 0}, "is not signed with this installation"),
        ({"contradicts": 3}, "The trail contradicts the checkpoint of entry 3"),
        ({"trouble": "the <b>URL"}, "Of the last checkpoint: the &lt;b&gt;URL."),
    ],
)
def test_the_page_warns_of_what_is_wrong_with_the_checkpoint(
    reader: Client, now: datetime, change: dict[str, object], sentence: str
) -> None:
    decide(now)
    checkpointing.take(now=now)
    LastCheckpoint.objects.update(**change)

    assert sentence in page_of(reader)


def test_the_page_warns_when_decisions_wait_for_a_checkpoint(
    reader: Client, now: datetime
) -> None:
    checkpointing.take(now=now - timedelta(minutes=6))
    quiet = page_of(reader)
    decide(now)

    assert "takes new ones" not in quiet
    assert "takes new ones" in page_of(reader)
