"""Template tags of the skip pages."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.core import clock
from apps.dashboard.presentation.moments import relative, stamp, utc

register = template.Library()


@register.simple_tag
def time_left(moment: datetime | None) -> SafeString:
    """Show the time left until a skip expires; "never" without an end."""
    if moment is None:
        return format_html("{}", "never")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        stamp(moment),
        utc(moment),
        relative(moment - clock.now()),
    )
