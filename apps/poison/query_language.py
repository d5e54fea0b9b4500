"""The query language of lists, counts, operations and the API.

    is:open topic:orders* !cause:crash error:"connection reset" day:2026-11-20

AND joins terms, `!` negates a term, quotes hold spaces, `*` stands for any text in
topics and consumers, and `problem:` takes numbers separated by commas. A word without a
key is searched in the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from django.db.models import Q

from apps.brokers import topic_names_to_id_filters
from apps.core.errors import Invalid
from apps.core.wildcard_patterns import like
from apps.poison.states import DisplayState, states_displayed_as
from poisonguard.contract import Cause

MAX_LENGTH = 2000
MAX_TERMS = 20
MAX_ID = 2**63 - 1

_TOKEN = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Term:
    key: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        value = self.value
        if not value or re.search(r'[\s"\\:!]', value):
            value = '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
        return f"{'!' if self.negated else ''}{self.key}:{value}"


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query; `str()` returns its canonical text."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a query for poisons; raise Invalid naming the word that is wrong."""
        if len(text) > MAX_LENGTH:
            raise Invalid("q", f"it is longer than {MAX_LENGTH} characters")
        return cls.from_canonical(text)

    @classmethod
    def from_canonical(cls, text: str) -> Self:
        """Parse a query that `str()` wrote, which may be longer than its original."""
        if "\0" in text or (not text.isascii() and _has_surrogate(text)):
            raise Invalid("q", "it holds a character that no stored text has")
        rest = _TOKEN.sub("", text)
        if rest.strip():
            raise Invalid("q", "a quotation mark is not closed")
        words = _TOKEN.findall(text)
        if len(words) > MAX_TERMS:
            raise Invalid("q", f"it has more than {MAX_TERMS} terms")
        return cls(tuple(_parse_term(word) for word in words))

    def __str__(self) -> str:
        return " ".join(str(term) for term in self.terms)

    def where(self) -> Q:
        """Build a condition on poisons; look up topics in Postgres each time."""
        condition = Q()
        for term in self.terms:
            matches = CONDITIONS[term.key](term.value)
            condition &= ~matches if term.negated else matches
        return condition

    def split(self, key: str) -> tuple[Self, Self]:
        """Split a query into the terms with this key and all others."""
        with_key = tuple(term for term in self.terms if term.key == key)
        others = tuple(term for term in self.terms if term.key != key)
        return type(self)(with_key), type(self)(others)

    def value_of(self, key: str) -> str | None:
        """Return the value of a query's only term with this key, or None."""
        values = [t.value for t in self.terms if t.key == key and not t.negated]
        return values[0] if len(values) == 1 else None


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _parse_term(word: str) -> Term:
    """Parse a query's word; raise Invalid with the word if it is wrong."""
    negated = word.startswith("!")
    bare = word.removeprefix("!")
    key, colon, value = bare.partition(":")
    if bare.startswith('"') or not colon:
        key, value = "error", bare
    if key not in CONDITIONS:
        keys = ", ".join(f"{name}:" for name in sorted(CONDITIONS))
        raise Invalid("q", f"“{word}”: there is no {key}: — there are {keys}")
    term = Term(key, _unquoted(value), negated)
    try:
        CHECKS[key](term.value)
    except ValueError as reason:
        raise Invalid("q", f"“{word}”: {reason}") from None
    return term


def _unquoted(value: str) -> str:
    """Return a query's value without its quotes and the escapes inside."""
    return _QUOTED.sub(lambda match: _ESCAPED.sub(r"\1", match[1]), value)


def _in_state(value: str) -> Q:
    """Select poisons by displayed state; raise ValueError for another word."""
    labels = ", ".join(DisplayState)
    if value not in list(DisplayState):
        raise ValueError(f"is: takes one of {labels}")
    return Q(state__in=states_displayed_as(DisplayState(value)))


def _failed_on_day(value: str) -> Q:
    """Select poisons that failed last on this UTC day; raise ValueError."""
    try:
        day = date.fromisoformat(value)
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        end = start + timedelta(days=1)
    except (ValueError, OverflowError):
        raise ValueError("day: takes a date such as 2026-11-20 (UTC)") from None
    return Q(last_failed_at__gte=start, last_failed_at__lt=end)


def _of_problems(value: str) -> Q:
    """Select poisons of these problem ids; raise ValueError for another text."""
    numbers = value.split(",")
    if not all(_is_id(number) for number in numbers):
        raise ValueError("problem: takes the number of a problem, or some with commas")
    return Q(problem_id__in=[int(number) for number in numbers])


def _is_id(text: str) -> bool:
    """Tell whether a query's text is a number that an id can have."""
    return text.isascii() and text.isdigit() and int(text[:20]) <= MAX_ID


def _with_cause(value: str) -> Q:
    """Select poisons by cause; raise ValueError for another word."""
    if value not in list(Cause):
        raise ValueError(f"cause: takes one of {', '.join(Cause)}")
    return Q(cause=value)


def _required_name(value: str) -> str:
    """Return the name in a query's term; raise ValueError for an empty one."""
    if not value:
        raise ValueError("it names nothing")
    return value


def _on_topic(value: str) -> Q:
    """Select poisons of topics by name or pattern; it queries Postgres."""
    return topic_names_to_id_filters.matching([_required_name(value)])


def _in_group(value: str) -> Q:
    """Select poisons by consumer group, or by a pattern with `*`."""
    if "*" in _required_name(value):
        return Q(consumer_group__like=like(value))
    return Q(consumer_group=value)


def _with_error(value: str) -> Q:
    """Select poisons whose error type or message contains the text."""
    if not value:
        raise ValueError("error: needs a word to look for")
    pattern = f"%{like(value)}%"
    return Q(error_type__ilike=pattern) | Q(error_message__ilike=pattern)


CONDITIONS: dict[str, Callable[[str], Q]] = {
    "is": _in_state,
    "day": _failed_on_day,
    "topic": _on_topic,
    "problem": _of_problems,
    "consumer": _in_group,
    "cause": _with_cause,
    "error": _with_error,
}
# How a term is checked when the query is parsed. Topics are looked up only when the
# query is used: between a preview and its operation, new ones may match.
CHECKS: dict[str, Callable[[str], object]] = {**CONDITIONS, "topic": _required_name}
