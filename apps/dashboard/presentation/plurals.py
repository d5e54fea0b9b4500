"""Nouns in words of pages: messages, deliveries."""

from __future__ import annotations


def plural_of(noun: str) -> str:
    """Return the plural of a noun: messages, days, deliveries."""
    if noun.endswith("y") and noun[-2:-1] not in set("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}s"
