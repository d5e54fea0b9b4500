"""Names with `*` in them: one meaning in Python and in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

# Generic for the type checker only; Django's own class takes no parameter.
if TYPE_CHECKING:
    TextLookup = models.Lookup[str]
else:
    TextLookup = models.Lookup

_LIKE_SPECIALS = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_"})


def matches(pattern: str, text: str) -> bool:
    """Check a text against a pattern, in a time that grows with their lengths only."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    at = len(first)
    for part in middle:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return (
        text.startswith(first) and text.endswith(last) and at + len(last) <= len(text)
    )


def like(pattern: str) -> str:
    """Turn a pattern of `*` into one of LIKE, in which nothing else is special."""
    return pattern.translate(_LIKE_SPECIALS).replace("*", "%")


def any_like(field: str, patterns: Iterable[str]) -> Q:
    """Tell of rows whose text matches one of these; of all rows if one is `*`."""
    wanted = Q(pk__in=[])
    for pattern in patterns:
        if pattern == "*":
            return Q()
        wanted |= Q((f"{field}__like", like(pattern)))
    return wanted


class Like(TextLookup):
    """`name__like="orders.%"`: LIKE, with the backslash as its escape."""

    lookup_name = "like"
    operator = "LIKE"

    def as_sql(self, compiler, connection):  # type: ignore[no-untyped-def] # as Django's
        left, left_params = self.process_lhs(compiler, connection)
        right, right_params = self.process_rhs(compiler, connection)
        return f"{left} {self.operator} {right}", [*left_params, *right_params]


class ILike(Like):
    lookup_name = "ilike"
    operator = "ILIKE"


for _lookup in (Like, ILike):
    models.TextField.register_lookup(_lookup)
