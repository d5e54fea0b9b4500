"""Safe access to what an audit entry holds.

An entry that was inserted by hand may hold anything: every member may be missing or of
another type, and every text is shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from apps.audit.models import Entry
from apps.dashboard.presentation.plurals import counted_noun as plural

LONGEST_NAME: Final = 120
MOST_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """Safe access to the members of an audit entry."""

    entry: Entry

    @property
    def who(self) -> str:
        """Return who acted in an audit entry, as a subject: a name, or "The key x"."""
        return name_of(self.entry.actor, key="The key")

    @property
    def subject(self) -> str:
        """Return the name of an audit entry's subject, without its kind."""
        return shorten(str(self.entry.subject).partition(":")[2])

    @property
    def detail(self) -> Mapping[str, object]:
        """Return the audit entry's detail; {} if it is not a mapping."""
        return self.entry.detail if isinstance(self.entry.detail, Mapping) else {}

    def text(self, name: str, default: str = "") -> str:
        """Return a value of the audit entry's detail as short text, else `default`."""
        value = self.detail.get(name)
        return default if value in (None, "") else shorten(str(value))

    def texts(self, name: str) -> list[str]:
        """Return a list of the audit entry's detail as short texts; [] without one."""
        value = self.detail.get(name)
        return [shorten(str(each)) for each in value] if isinstance(value, list) else []

    def count(self, name: str, noun: str) -> str:
        """Count a noun by a number in the audit entry's detail: "3 messages".

        Without a number it is "0 messages".
        """
        value = self.detail.get(name)
        number = value if isinstance(value, int) else 0
        return plural(number, noun)


Sentence = Callable[[Facts], str]


def name_of(actor: object, *, key: str) -> str:
    """Return the name of an actor; `key` are the words before the name of a key."""
    kind, _, name = str(actor).partition(":")
    name = shorten(name or kind)
    if kind == "key":
        return f"{key} {name}"
    return f"Poisonweb ({name})" if kind == "system" else name


def shorten(text: str, *, limit: int = LONGEST_NAME) -> str:
    """Shorten a text of an audit entry to `limit` characters, with "…"."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def join_first(names: list[str]) -> str:
    """Join the first few names of an audit entry, and count the others."""
    first, others = names[:MOST_NAMES], len(names) - MOST_NAMES
    return ", ".join(first) + (f" and {others:,} more" if others > 0 else "")


def from_address(facts: Facts) -> str:
    """Return a sentence's end: from which network address, or ""."""
    address = facts.text("address")
    return f" from {address}" if address else ""


def who_did(deed: str, *, says_where: bool = False) -> Sentence:
    """Return a function that describes an audited action without details."""

    def say(facts: Facts) -> str:
        return f"{facts.who} {deed}{from_address(facts) if says_where else ''}"

    return say


def who_did_to_subject(deed: str) -> Sentence:
    """Return a function that describes an action whose detail is only its subject."""

    def say(facts: Facts) -> str:
        return f"{facts.who} {deed} {facts.subject}"

    return say
