"""Moments, their age, and the time that is left until them."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core import clock
from apps.core.statement_timeouts import TooSlow
from apps.dashboard.presentation.counts_as_text import count_noun, took_too_long

UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def ago(moment: datetime | TooSlow | None, *, in_sentence: bool = False) -> SafeString:
    """Show a moment's age: 3h in a table; `in_sentence`, 3h ago."""
    if isinstance(moment, TooSlow):
        return took_too_long()
    if moment is None:
        return format_html("{}", "—")
    age = relative(clock.now() - moment)
    return format_html(
        '<time datetime="{}" title="{}" data-relative="{}">{}</time>',
        stamp(moment),
        utc(moment),
        "said" if in_sentence else "",
        in_words(age) if in_sentence else age,
    )


def until(moment: datetime | TooSlow | None) -> SafeString:
    """Show the time that is left until a moment: in 3m; "now" if it is over."""
    if isinstance(moment, TooSlow):
        return took_too_long()
    if moment is None:
        return format_html("{}", "—")
    wait = relative(moment - clock.now())
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        stamp(moment),
        utc(moment),
        wait if wait == "now" else f"in {wait}",
    )


def at(moment: datetime | None) -> SafeString:
    """Show a moment, with its exact time for scripts and on hover; "—" for None."""
    if moment is None:
        return format_html("{}", "—")
    return format_html('<time datetime="{}">{}</time>', stamp(moment), utc(moment))


def time_left(moment: datetime) -> str:
    """Describe the time until a moment, in whole days: 29 days left."""
    days = (moment - clock.now()).days
    return f"{count_noun(days, 'day')} left" if days > 0 else "less than a day left"


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def relative(age: timedelta) -> str:
    """Format a moment's age in its largest unit: 3h; "now" if just now."""
    seconds = age.total_seconds()
    for unit, size in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "now"


def in_words(age: str) -> str:
    return "just now" if age == "now" else f"{age} ago"
