"""Pluralise and count nouns."""

from __future__ import annotations


def plural_of(noun: str) -> str:
    """Return the plural of a noun: messages, days, deliveries, outboxes."""
    if noun.endswith("y") and noun[-2:-1] not in set("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("x") else f"{noun}s"


def counted_noun(number: int, noun: str) -> str:
    """Count a noun: "1 message", "1,204 deliveries"."""
    return f"{number:,} {noun if number == 1 else plural_of(noun)}"
