"""Sign redriven messages, so that a report about a copy finds its poison.

`x-poisonweb-redrive: <id>.<HMAC over id + topic + digest of the body that was sent>`.
Consumers copy it as it is; only this installation can make one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import uuid
from functools import lru_cache

from django.conf import settings

from apps.core.hashed_ids import digest_of, raw
from poisonguard.contract import uuid_of

_SALT = b"poisonweb.redrive"


def sign(*, redrive: uuid.UUID, topic: str, digest: bytes | memoryview) -> str:
    """Return the token of a redrive: its id, and a MAC over id, topic and body."""
    message = digest_of(redrive.bytes, raw(topic), bytes(digest))
    mac = hmac.digest(_key(settings.SECRET_KEY), message, "sha256")
    return f"{redrive}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


@lru_cache(maxsize=1)
def _key(secret: str) -> bytes:
    """Derive the key that signs redrives, as Django's `salted_hmac` does."""
    return hashlib.sha256(_SALT + secret.encode()).digest()


def redrive_of(token: str) -> uuid.UUID | None:
    """Return the redrive id in a token, valid or forged; None if it has no id."""
    return uuid_of(token.partition(".")[0])


def verified_redrive_id(
    token: str, *, topic: str, digest: bytes | memoryview
) -> uuid.UUID | None:
    """Return a token's redrive id if we signed it for this topic and body."""
    redrive = redrive_of(token)
    if redrive is None:
        return None
    genuine = sign(redrive=redrive, topic=topic, digest=digest)
    is_valid = hmac.compare_digest(genuine.encode(), token.encode("utf-8", "replace"))
    return redrive if is_valid else None
