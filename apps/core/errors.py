"""The errors of all apps; the API and the dashboard translate each once.

PoisonwebError
├── Invalid      the input is not usable; names the field and the remedy
├── Refused      the current state does not allow it
├── Forbidden    this actor has no right to it
├── Absent       it does not exist, or this actor may not see it
└── Unavailable  a service that we need does not answer; try again later
"""

from __future__ import annotations

import inspect


def step(name: str) -> str:
    """Escape a member's name for a JSON Pointer in an Invalid, as RFC 6901 says."""
    return name.replace("~", "~0").replace("/", "~1")


class PoisonwebError(Exception):
    """Something went wrong."""

    # The name of the error in answers of the API; that of the class, if it is empty.
    problem = ""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class Invalid(PoisonwebError):
    """A value that came in is not usable."""

    def __init__(self, field: str, remedy: str) -> None:
        super().__init__(f"{field}: {remedy}" if field else remedy)
        self.field = field
        self.remedy = remedy

    @property
    def pointer(self) -> str:
        """Return the JSON Pointer (RFC 6901) of the field; "" is the whole document."""
        return f"/{self.field}" if self.field else ""


class Refused(PoisonwebError):
    """The request is not allowed in the current state."""

    def __init__(self, message: str | None = None, *, field: str = "") -> None:
        super().__init__(message)
        # The field whose value is refused; "" where no single field is.
        self.field = field


class Forbidden(PoisonwebError):
    """You do not have the right to do this."""


class Absent(PoisonwebError):
    """There is no such thing here."""


class Unavailable(PoisonwebError):
    """Something that is needed is away; try again in a moment."""
