"""The details of an audit entry in a line."""

from __future__ import annotations

from apps.dashboard.presentation.audit_entry_facts import facts


def test_tells_the_detail_of_an_entry_in_a_line() -> None:
    detail = {"verb": "drop", "query": None, "counts": {"dropped": 3, "waiting": 0}}

    assert facts(detail) == "verb drop · counts 3 dropped"
