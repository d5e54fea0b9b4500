"""The signature that ties a redriven message to its poison.

`x-poisonweb-redrive: <id>.<HMAC over id + topic + digest of the body that was sent>`.
A consumer copies it without understanding it; nobody else can make one.
"""

from __future__ import annotations

import base64
import hmac
import uuid

from django.conf import settings
from django.utils.crypto import salted_hmac

from apps.core.ids import digest_of, raw

_SALT = "poisonweb.redrive"


def sign(*, redrive: uuid.UUID, topic: str, digest: bytes | memoryview) -> str:
    message = digest_of(redrive.bytes, raw(topic), bytes(digest))
    mac = salted_hmac(_SALT, message, secret=settings.SECRET_KEY, algorithm="sha256")
    return f"{redrive}.{base64.urlsafe_b64encode(mac.digest()).decode().rstrip('=')}"


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
