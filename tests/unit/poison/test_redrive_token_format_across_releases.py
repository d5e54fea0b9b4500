"""Tokens: those in queues stay valid across releases."""

from __future__ import annotations

import base64
import uuid

import pytest
from django.utils.crypto import salted_hmac
from pytest_django import Settings

from apps.core.hashed_ids import digest_of
from apps.poison import redrive_signatures

REDRIVE = uuid.UUID("0195f3a0-0000-7000-8000-000000000001")
DIGEST = bytes(32)


def test_a_token_is_signed_as_django_signs() -> None:
    signed = redrive_signatures.sign(redrive=REDRIVE, topic="orders", digest=DIGEST)

    message = digest_of(REDRIVE.bytes, b"orders", DIGEST)
    mac = salted_hmac("poisonweb.redrive", message, algorithm="sha256").digest()
    text = base64.urlsafe_b64encode(mac).decode().rstrip("=")
    assert signed == f"{REDRIVE}.{text}"


@pytest.mark.parametrize("secret", ["another", "and one more"])
def test_another_secret_signs_another_token(settings: Settings, secret: str) -> None:
    ours = redrive_signatures.sign(redrive=REDRIVE, topic="orders", digest=DIGEST)

    settings.SECRET_KEY = secret

    assert (
        redrive_signatures.verified_redrive_id(ours, topic="orders", digest=DIGEST)
        is None
    )
