"""Template tags of the report pages."""

from __future__ import annotations

from datetime import date, timedelta

from django import template

from apps.dashboard.presentation import report_numbers

register = template.Library()
register.filter(report_numbers.milliseconds)

# Who counted the deliveries.
COUNTED_BY = {
    "sdk": "counted by the consumers",
    "broker": "counted by the broker",
    "none": "deliveries not counted",
}


@register.simple_tag
def interval(low: float | None, high: float | None) -> str:
    """Format a failure rate's confidence interval as percentages."""
    return report_numbers.interval(low, high)


@register.simple_tag
def sources() -> list[tuple[str, str]]:
    """List who can count a topic's deliveries, with an explanation of each."""
    return list(COUNTED_BY.items())


@register.filter
def counted_by(source: str) -> str:
    """Return the explanation of who counted a topic's deliveries: the SDK or broker."""
    return COUNTED_BY[source]


@register.filter
def edge(top: float) -> str:
    """Format a failure rate as a percentage, for the upper end of a chart's axis."""
    return f"{100 * top:g}\u00a0%"


@register.filter
def weekday(day: date) -> str:
    return f"{day:%A}"


@register.filter
def times(ratio: float | None) -> str:
    """Format a failure rate's rise as a multiple; "new" without an earlier one."""
    return "new" if ratio is None else f"{ratio:,.1f}×"  # noqa: RUF001 - a sign


@register.filter
def duration(span: timedelta | None) -> str:
    """Format a report run's duration in minutes and seconds."""
    if span is None:
        return report_numbers.NOTHING
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    return f"{minutes}\u00a0min {seconds}\u00a0s" if minutes else f"{seconds}\u00a0s"
