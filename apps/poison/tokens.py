"""The signature that ties a redriven message to its poison.

`x-poisonweb-redrive: <id>.<HMAC over id + topic + digest of the body that was sent>`.
A consumer copies it without understanding it; nobody else can make one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from functools import lru_cache

from django.conf import settings

from apps.core.ids import digest_of, raw

_SALT = b"poisonweb.redrive"


def sign(*, redrive: uuid.UUID, topic: str, digest: bytes | memoryview) -> str:
    message = digest_of(redrive.bytes, raw(topic), bytes(digest))
    mac = hmac.digest(_key(settings.SECRET_KEY), message, "sha256")
    return f"{redrive}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


@lru_cache(maxsize=1)
def _key(secret: str) -> bytes:
    """Derive the key as Django's `salted_hmac` does, but not anew for each token."""
    return hashlib.sha256(_SALT + secret.encode()).digest()


def redrive_of(token: str) -> uuid.UUID | None:
    """Read the id out of a token, true or forged; None if it holds none."""
    try:
        return uuid.UUID(token.partition(".")[0])
    except ValueError:
        return None


def verified(token: str, *, topic: str, digest: bytes | memoryview) -> uuid.UUID | None:
    """Give the redrive's id if we signed this very token for this topic and body."""
    redrive = redrive_of(token)
    if redrive is None:
        return None
    genuine = sign(redrive=redrive, topic=topic, digest=digest)
    same = hmac.compare_digest(genuine.encode(), token.encode("utf-8", "replace"))
    return redrive if same else None
