"""Links to searches for messages."""

from __future__ import annotations

from django.utils.http import urlencode

from apps.poison.query_language import Query, Term


def search(**terms: object) -> str:
    """Build the query of a search for messages: `{% search state is="open" %}`."""
    query = Query(tuple(Term(key, str(value)) for key, value in terms.items()))
    return "?" + urlencode({"q": str(query)})
