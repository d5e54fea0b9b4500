"""What a list was asked for, parsed once from its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qs, urlsplit

from django.http import HttpRequest

from apps.core.errors import Invalid
from apps.dashboard.paging import Cursor
from apps.poison.query import Query


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """`query` is what the list shows; `text` is what the box shows.

    They differ only while the text makes no sense: then `wrong` says why, and the list
    stays what it was.
    """

    query: Query
    text: str
    wrong: str
    cursor: Cursor | None
    everything: bool
    sort: str

    @classmethod
    def of(cls, request: HttpRequest, *, default: str = "") -> Self:
        text = request.GET.get("q", default)
        query, wrong = _parsed(text)
        if query is None:
            query = _last_good(request, default)
        return cls(
            query=query,
            text=text,
            wrong=wrong,
            cursor=None if wrong else Cursor.parse(request.GET.get("cursor", "")),
            everything="everything" in request.GET and not wrong,
            sort=request.GET.get("sort", ""),
        )

    @property
    def status(self) -> int:
        return 422 if self.wrong else 200


def _parsed(text: str) -> tuple[Query | None, str]:
    try:
        return Query.parse(text), ""
    except Invalid as reason:
        return None, reason.remedy


def _last_good(request: HttpRequest, default: str) -> Query:
    """Give the query of the page that this one was asked from."""
    parts = urlsplit(request.META.get("HTTP_REFERER", ""))
    before = _first(parse_qs(parts.query)) if parts.path == request.path else default
    query, _ = _parsed(before)
    return query or Query.parse(default)


def _first(values: Mapping[str, list[str]]) -> str:
    return values.get("q", [""])[0]
