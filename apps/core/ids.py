"""Identities that are computed, never invented."""

from __future__ import annotations

import hashlib
import uuid


def raw(text: str) -> bytes:
    """Encode any text, lone surrogates too, so that no two texts share their bytes."""
    return text.encode("utf-8", "surrogatepass")


def unraw(value: bytes | memoryview) -> str:
    return bytes(value).decode("utf-8", "surrogatepass")


def digest_of(*parts: bytes) -> bytes:
    """Hash the parts, each behind its length, so that no two lists share a digest."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "big"))
        sha.update(part)
    return sha.digest()


def identity(*, topic: str, consumer_group: str, bookmark: bytes) -> bytes:
    """Name a poison: the same message, read by the same consumer group."""
    return digest_of(raw(topic), raw(consumer_group), bookmark)


def report_id(*, queue: str, bookmark: str) -> uuid.UUID:
    """Name the drain of one dead letter, so that draining it twice counts once."""
    return uuid.UUID(bytes=digest_of(b"dead letter", raw(queue), raw(bookmark))[:16])
