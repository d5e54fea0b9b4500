"""Compute identities from content."""

from __future__ import annotations

import hashlib
import uuid


def raw(text: str) -> bytes:
    """Encode any text, with lone surrogates; distinct texts get distinct bytes."""
    return text.encode("utf-8", "surrogatepass")


def unraw(value: bytes | memoryview) -> str:
    """Decode a text that `raw` encoded, lone surrogates included."""
    return bytes(value).decode("utf-8", "surrogatepass")


def digest_of(*parts: bytes) -> bytes:
    """Hash the parts of an id, each after its length; distinct lists differ."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "big"))
        sha.update(part)
    return sha.digest()


def identity(*, topic: str, consumer_group: str, bookmark: bytes) -> bytes:
    """Compute the identity of a poison: one message in one consumer group."""
    return digest_of(raw(topic), raw(consumer_group), bookmark)


def report_id(*, queue: str, bookmark: str) -> uuid.UUID:
    """Compute the report id of a dead letter, so that draining it twice counts once."""
    return uuid.UUID(bytes=digest_of(b"dead letter", raw(queue), raw(bookmark))[:16])
