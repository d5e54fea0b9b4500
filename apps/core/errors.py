"""One tree of errors; each door translates it once.

PoisonwebError
├── Invalid      what came in is not usable; names the field and the remedy
├── Refused      not allowed in the current state
├── Forbidden    this actor may not
├── Absent       no such thing, or none this actor may see
└── Unavailable  something we need is away; try again later
"""

from __future__ import annotations

import inspect


class PoisonwebError(Exception):
    """Something went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class Invalid(PoisonwebError):
    """A value that came in is not usable."""

    def __init__(self, field: str, remedy: str) -> None:
        super().__init__(f"{field}: {remedy}")
        self.field = field
        self.remedy = remedy


class Refused(PoisonwebError):
    """The request is not allowed in the current state."""


class Forbidden(PoisonwebError):
    """You do not have the right to do this."""


class Absent(PoisonwebError):
    """There is no such thing here."""


class Unavailable(PoisonwebError):
    """Something that is needed is away; try again in a moment."""
