"""The query parameters of lists, parsed once from the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self
from urllib.parse import parse_qs, urlsplit

from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode

from apps.core.errors import Invalid
from apps.dashboard.keyset_pagination import ListCursor
from apps.poison.query_language import Query


@dataclass(frozen=True, kw_only=True, slots=True)
class ListParams:
    """`query` is what the list shows; `text` is what the box shows.

    They differ only where the text is not a valid query: then `wrong` says why, and the
    list keeps its last valid query.
    """

    query: Query
    text: str
    wrong: str
    cursor: ListCursor | None
    everything: bool
    sort: str

    @classmethod
    def of(cls, request: HttpRequest, *, default: str = "") -> Self:
        """Parse a list's address: query, cursor, sort order, whether all is selected.

        For a wrong query, the list uses the valid query of the page before, else the
        default, and `wrong` says what is wrong. Raises Invalid for a wrong cursor.
        """
        text = request.GET.get("q", default)
        query, wrong = _query_or_error(text)
        if query is None:
            query = _query_of_page_before(request, default)
        return cls(
            query=query,
            text=text,
            wrong=wrong,
            cursor=None if wrong else ListCursor.parse(request.GET.get("cursor", "")),
            everything="everything" in request.GET and not wrong,
            sort=request.GET.get("sort", ""),
        )

    @property
    def status(self) -> int:
        """Return the status code of the list's page: 422 for a wrong query."""
        return 422 if self.wrong else 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The list from which a person opened a problem, for links back and onwards."""

    query: Query
    sort: str = ""
    is_overview: bool = False

    DEFAULT: ClassVar[str] = "is:open"

    @classmethod
    def of(cls, request: HttpRequest) -> Self:
        """Return the list that a problem's page was opened from, as its address says.

        Without a valid query in the address, it is the list of open problems.
        """
        query, _ = _query_or_error(request.GET.get("list", cls.DEFAULT))
        return cls(
            query=query if query is not None else Query.parse(cls.DEFAULT),
            sort=request.GET.get("sort", ""),
            is_overview=request.GET.get("from") == "overview",
        )

    @classmethod
    def in_list(cls, params: ListParams) -> Self:
        """Return a list of problems as the place that their pages lead back to."""
        return cls(query=params.query, sort=params.sort)

    @property
    def params(self) -> dict[str, str]:
        """Return the parameters by which a problem's page leads back to this list."""
        if self.is_overview:
            return {"from": "overview"}
        text = str(self.query)
        return ({"list": text} if text != self.DEFAULT else {}) | self._sorted

    @property
    def suffix(self) -> str:
        """Return a problem's link parameters as a query string; "" without."""
        return f"?{urlencode(self.params)}" if self.params else ""

    @property
    def href(self) -> str:
        """Return the address of the list from which a person opened a problem."""
        if self.is_overview:
            return reverse("home")
        params = {"q": str(self.query)} | self._sorted
        return f"{reverse('problems')}?{urlencode(params)}"

    @property
    def _sorted(self) -> dict[str, str]:
        return {"sort": self.sort} if self.sort else {}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemPageParams:
    """The parameters of a problem's page: its messages, its list, and a column.

    `header` is the name of the header that the list shows; "" if none is chosen.
    """

    messages: ListParams
    origin: Origin
    header: str

    @classmethod
    def of(cls, request: HttpRequest) -> Self:
        """Parse what a problem's page's address asks for: messages, origin, header."""
        return cls(
            messages=ListParams.of(request, default=Origin.DEFAULT),
            origin=Origin.of(request),
            header=request.GET.get("header", ""),
        )


def _query_or_error(text: str) -> tuple[Query | None, str]:
    """Parse a query; return it and "", or for a wrong one None and the remedy."""
    try:
        return Query.parse(text), ""
    except Invalid as reason:
        return None, reason.remedy


def _query_of_page_before(request: HttpRequest, default: str) -> Query:
    """Return the valid query of the page that led here, or the default."""
    parts = urlsplit(request.META.get("HTTP_REFERER", ""))
    before = _first(parse_qs(parts.query)) if parts.path == request.path else default
    query, _ = _query_or_error(before)
    return query or Query.parse(default)


def _first(values: Mapping[str, list[str]]) -> str:
    return values.get("q", [""])[0]
