"""Take bodies of many members apart; each member is parsed and answered alone."""

from __future__ import annotations

from collections.abc import Mapping

from apps.api.request_exceptions import Malformed, TooManyMembers

MOST_MEMBERS = 1_000


def list_of(data: object, name: str, *, most: int = MOST_MEMBERS) -> list[object]:
    """Return the list in a request's `{name: [...]}`.

    Raises Malformed for anything else, and TooManyMembers.
    """
    items = members_of(data).get(name)
    if not isinstance(items, list):
        raise Malformed(name, f'send an object with a list: {{"{name}": [...]}}')
    if len(items) > most:
        raise TooManyMembers(name, f"send at most {most} in one request.")
    return items


def members_of(data: object) -> Mapping[str, object]:
    """Give the members of a request's object; raises Malformed for anything else."""
    if not isinstance(data, Mapping):
        raise Malformed("", "send a JSON object")
    return data
