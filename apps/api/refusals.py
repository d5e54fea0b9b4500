"""The errors of a request that is refused before any service is called."""

from __future__ import annotations

from apps.core.errors import Invalid, PoisonwebError


class Unreadable(PoisonwebError):
    """The body of the request cannot be read."""


class Malformed(Invalid):
    """A part of the request is not what it must be."""


class TooLarge(PoisonwebError):
    """The request is larger than this server takes."""


class UnknownEncoding(PoisonwebError):
    """The body is encoded in a way that this server does not know."""
