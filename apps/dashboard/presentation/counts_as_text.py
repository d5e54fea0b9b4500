"""Counts and shares as text, and a dash for what took too long to count."""

from __future__ import annotations

from typing import Literal

from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core.statement_timeouts import TooSlow
from apps.dashboard.keyset_pagination import BoundedCount
from apps.dashboard.presentation import report_numbers
from apps.dashboard.presentation.plurals import plural_of


def too_slow(figure: object) -> bool:
    """Tell whether a value stands for a number that Postgres took too long to count."""
    return isinstance(figure, TooSlow)


def took_too_long() -> SafeString:
    """Show a dash for a number that Postgres took too long to count."""
    return format_html(
        '<span class="too-slow" title="{why}">—<span class="only-heard">'
        " ({why})</span></span>",
        why="took too long to count just now",
    )


def number(value: int | BoundedCount | TooSlow | Literal[""] | None) -> str:
    """Format a count with commas; "—" for None or what took too long."""
    if isinstance(value, TooSlow):
        return took_too_long()
    # A template passes "" for a missing attribute.
    if value is None or value == "":
        return "—"
    return str(value) if isinstance(value, BoundedCount) else f"{value:,}"


def count_noun(value: int | BoundedCount | TooSlow, noun: str) -> str:
    """Count nouns in words: 1 message, 1,204 messages, 2 deliveries."""
    if isinstance(value, TooSlow):
        return format_html("{} {}", took_too_long(), plural_of(noun))
    one = value.is_one if isinstance(value, BoundedCount) else value == 1
    return f"{value} {noun}" if one else f"{number(value)} {plural_of(noun)}"


def percent(share: float | TooSlow | None) -> str:
    return (
        took_too_long() if isinstance(share, TooSlow) else report_numbers.percent(share)
    )
