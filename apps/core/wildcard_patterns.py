"""Match names against patterns with `*`, the same in Python and in SQL."""

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
    """Match a text against a pattern, in linear time."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    *middle, last = others
    at = len(first)
    for part in middle:
        start = text.find(part, at)
        if start < 0:
            return False
        at = start + len(part)
    return (
        text.startswith(first) and text.endswith(last) and at + len(last) <= len(text)
    )


def like(pattern: str) -> str:
    """Translate a pattern with `*` into one of SQL's LIKE; escape all else."""
    return pattern.translate(_LIKE_SPECIALS).replace("*", "%")


def any_like(field: str, patterns: Iterable[str]) -> Q:
    """Build a condition for text that matches one of these patterns with `*`."""
    condition = Q(pk__in=[])
    for pattern in patterns:
        if pattern == "*":
            return Q()
        condition |= Q((f"{field}__like", like(pattern)))
    return condition


class Like(TextLookup):
    """`name__like="orders.%"`: LIKE, with the backslash as its escape."""

    lookup_name = "like"
    operator = "LIKE"

    def as_sql(self, compiler, connection):  # type: ignore[no-untyped-def] # as Django's
        """Return the SQL of `column LIKE pattern`, and its parameters."""
        lhs, lhs_params = self.process_lhs(compiler, connection)
        rhs, rhs_params = self.process_rhs(compiler, connection)
        return f"{lhs} {self.operator} {rhs}", [*lhs_params, *rhs_params]


class ILike(Like):
    lookup_name = "ilike"
    operator = "ILIKE"


for _lookup in (Like, ILike):
    models.TextField.register_lookup(_lookup)
