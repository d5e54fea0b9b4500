"""Parse the members that many requests share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from apps.api.bodies import members_of
from apps.audit.services import clean_reason
from apps.core.errors import Invalid, step
from apps.core.text import storable

__all__ = ["members_of"]

TEXT_LIMIT = 255


def refuse_unknown(data: Mapping[str, object], allowed: set[str]) -> None:
    """Raise Invalid for an unknown member: the sender may rely on its effect."""
    for name in data:
        if name not in allowed:
            remedy = f"there is no such member; there are {', '.join(sorted(allowed))}"
            raise Invalid(step(storable(str(name), limit=TEXT_LIMIT)), remedy)


def text(name: str, value: object, *, limit: int = TEXT_LIMIT) -> str | None:
    """Parse text of bounded length; None if empty. Raises Invalid."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or len(value) > limit:
        raise Invalid(name, f"send text of at most {limit} characters")
    if value != storable(value):
        raise Invalid(name, "it holds a character that no stored text has")
    return value


def moment(name: str, value: object) -> datetime:
    """Parse a time with its zone; return it in UTC. Raises Invalid."""
    try:
        parsed = datetime.fromisoformat(value if isinstance(value, str) else "")
        in_utc = parsed.astimezone(UTC) if parsed.tzinfo else None
    except (ValueError, OverflowError):
        in_utc = None
    if in_utc is None:
        raise Invalid(name, "send a time and its zone, such as 2026-11-20T09:30Z")
    return in_utc


def flag(name: str, value: object) -> bool:
    """Parse true or false, false if it is missing. Raises Invalid."""
    if not isinstance(value, bool | None):
        raise Invalid(name, "send true or false")
    return value is True


def reason(value: object) -> str:
    """Parse a reason as it will be recorded. Raises Invalid."""
    if not isinstance(value, str | None):
        raise Invalid("reason", "send text")
    return clean_reason(value or "")
