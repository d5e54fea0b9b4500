"""The details of an audit entry as a line of text."""

from __future__ import annotations

from collections.abc import Mapping


def facts(detail: Mapping[str, object]) -> str:
    """Render the details of an audit entry as one line of text, without empty ones."""
    # The least important member comes last: the line may be cut.
    ordered = sorted(detail.items(), key=lambda pair: pair[0] == "as_of")
    members = {name: value for name, value in ordered if value not in (None, "", 0, [])}
    return " · ".join(f"{name} {_fact(value)}" for name, value in members.items())


def _fact(value: object) -> str:
    """Format a value of an audit entry: numbers with names, lists with commas."""
    if isinstance(value, Mapping):
        return ", ".join(f"{number} {name}" for name, number in value.items() if number)
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return str(value)
