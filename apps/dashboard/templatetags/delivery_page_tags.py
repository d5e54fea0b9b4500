"""Template tags and filters of the pages of endpoints and deliveries."""

from __future__ import annotations

from django import template

from apps.core.text_cleaning import readable
from apps.dashboard.presentation.state_pills import PILLS
from apps.redelivery.endpoint_fields import BY_NAME

register = template.Library()

_VERBS = {"retry": "Retry", "give_up": "Give up", "restore": "Restore"}
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


@register.filter
def delivery_verb(act: str) -> str:
    """Return the label of the button for a decision on deliveries."""
    return _VERBS[act]


@register.filter
def pill_label(state: str) -> str:
    """Return the label of a delivery's state in lower case, without its pill."""
    return PILLS[state][0].lower()


@register.filter
def setting_label(name: str) -> str:
    """Return the label of an endpoint's setting; an unknown name is capitalized."""
    setting = BY_NAME.get(name)
    return setting.label if setting else name.capitalize()


@register.filter
def bytes_text(value: bytes | memoryview) -> str:
    """Decode a message's bytes for a page; undecodable ones are replaced."""
    return readable(bytes(value))


@register.filter
def duration(seconds: str) -> str:
    """Write an endpoint setting's seconds as a person says: 7 days, 1.5 s."""
    number = float(seconds)
    for unit, size in _UNITS:
        if number >= size and number % size == 0:
            count = int(number // size)
            return f"{count:,} {unit}" if count == 1 else f"{count:,} {unit}s"
    return f"{number:,.15g} s"


@register.filter
def milliseconds(seconds: float) -> str:
    """Write how long an attempt at a delivery took: 35 ms, 10.0 s."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
