"""Links to searches for messages."""

from __future__ import annotations

from apps.dashboard.presentation.message_search_links import search


def test_links_to_what_has_all_the_terms() -> None:
    link = search(topic='a "b" c', problem=5)

    assert link == "?q=topic%3A%22a+%5C%22b%5C%22+c%22+problem%3A5"
