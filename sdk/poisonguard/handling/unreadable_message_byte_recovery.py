"""Recovers the bytes of a message that its reader cannot read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from poisonguard.readers import as_bytes

# Attributes and keys under which clients keep the bytes, the brokers' words first.
_NAMES = ("body", "data", "value", "payload", "content")
# A person reads the description: no need for a gigabyte of it.
DESCRIBED_LIMIT = 1_048_576
DESCRIBED_TYPE = "text/x-python-repr; charset=utf-8"


def raw_bytes(message: object) -> bytes | None:
    """Find the bytes of a message of any type; None where it has no bytes."""
    if (itself := as_bytes(message)) is not None:
        return itself
    if isinstance(message, tuple) and message:
        message = message[-1]  # clients put the metadata before the body
        if (last := as_bytes(message)) is not None:
            return last
    if isinstance(message, Mapping):
        return _of_mapping(message)
    for name in _NAMES:
        if (data := as_bytes(_attribute(message, name))) is not None:
            return data
    return None


def description(message: object) -> bytes:
    """Describe a message without bytes by its repr."""
    try:
        text = repr(message)
    except Exception as error:  # noqa: BLE001 - whatever a foreign __repr__ raises
        text = f"<{type(message).__name__} without a repr: {type(error).__name__}>"
    return text[:DESCRIBED_LIMIT].encode("utf-8", "backslashreplace")


def _attribute(message: object, name: str) -> object:
    """Read an attribute of a message; None where it is missing, or raises."""
    try:
        return getattr(message, name, None)
    except Exception:  # noqa: BLE001 - unreadable counts as missing
        return None


def _of_mapping(message: Mapping[object, object]) -> bytes | None:
    """Find the bytes of a mapping message, else its JSON; None where that fails."""
    try:
        for name in _NAMES:
            value = message.get(name, message.get(name.encode()))
            if (data := as_bytes(value)) is not None:
                return data
        return json.dumps(dict(message), separators=(",", ":")).encode()
    except Exception:  # noqa: BLE001 - no JSON, a cycle, or a broken mapping
        return None
