"""Exceptions for requests that are refused before any service is called.

`error_responses` makes the answers of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from apps.core.errors import Invalid, PoisonwebError


class Unreadable(PoisonwebError):
    """The body of the request cannot be read."""


class Malformed(Invalid):
    """A part of the request is not what it must be."""


class InvalidMembers(Invalid):
    """Members of the request are not usable.

    `faults` lists each JSON Pointer (RFC 6901) with its remedy; there is at least one.
    """

    problem = "invalid"

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        pointer, remedy = faults[0]
        super().__init__(pointer.removeprefix("/"), remedy)
        self.faults = faults


class TooLarge(PoisonwebError):
    """The request is larger than this server takes."""


class TooManyMembers(TooLarge, Invalid):
    """A list of the request is longer than this server takes."""

    problem = "too-large"


class UnknownEncoding(PoisonwebError):
    """The body is encoded in a way that this server does not know."""
