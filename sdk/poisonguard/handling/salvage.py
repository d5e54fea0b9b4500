"""What can be had of a message that its reader cannot read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from poisonguard.readers import as_bytes

# Where clients keep the bytes of a message, those of the brokers' names first.
_NAMES = ("body", "data", "value", "payload", "content")
# What describes a message is for a person to look at, and no place for a gigabyte.
DESCRIBED_LIMIT = 1_048_576
DESCRIBED_TYPE = "text/x-python-repr; charset=utf-8"


def raw_bytes(message: object) -> bytes | None:
    """Find the bytes of a message of any kind; None where there is none to be had."""
    if (itself := as_bytes(message)) is not None:
        return itself
    if isinstance(message, tuple) and message:
        message = message[-1]  # clients put what tells of a body before it
        if (last := as_bytes(message)) is not None:
            return last
    if isinstance(message, Mapping):
        return _of_mapping(message)
    for name in _NAMES:
        if (data := as_bytes(_attribute(message, name))) is not None:
            return data
    return None


def description(message: object) -> bytes:
    """Say what a message without bytes looks like."""
    try:
        text = repr(message)
    except Exception as error:  # noqa: BLE001 - whatever a foreign __repr__ raises
        text = f"<{type(message).__name__} without a repr: {type(error).__name__}>"
    return text[:DESCRIBED_LIMIT].encode("utf-8", "backslashreplace")


def _attribute(message: object, name: str) -> object:
    try:
        return getattr(message, name, None)
    except Exception:  # noqa: BLE001 - one that cannot be read is none
        return None


def _of_mapping(message: Mapping[object, object]) -> bytes | None:
    try:
        for name in _NAMES:
            value = message.get(name, message.get(name.encode()))
            if (data := as_bytes(value)) is not None:
                return data
        return json.dumps(dict(message), separators=(",", ":")).encode()
    except Exception:  # noqa: BLE001 - what JSON does not have, a cycle, a broken mapping
        return None
