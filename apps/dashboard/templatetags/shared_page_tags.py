"""Template tags and filters of all pages."""

from __future__ import annotations

from collections.abc import Mapping

from django import template

from apps.audit.services import REASON_LIMIT
from apps.brokers import adapters
from apps.brokers.models import Broker
from apps.core import clock
from apps.dashboard.presentation import (
    counts_as_text,
    definition_links,
    legible_text,
    moments,
    small_charts,
)
from apps.dashboard.presentation.audit_entry_sentences import sentence
from apps.dashboard.presentation.message_search_links import search
from apps.dashboard.presentation.state_pills import pill
from apps.dashboard.presentation.traceback_app_frames import app_frames
from apps.poison.models import Poison

register = template.Library()
register.simple_tag(pill)
register.simple_tag(definition_links.term)
register.simple_tag(definition_links.counted_pill)
register.simple_tag(definition_links.means)
register.filter(definition_links.anchor)
register.simple_tag(counts_as_text.took_too_long)
register.filter(counts_as_text.too_slow)
register.filter(counts_as_text.number)
register.filter("counted", counts_as_text.count_noun)
register.filter(counts_as_text.percent)
register.simple_tag(moments.ago)
register.simple_tag(moments.until)
register.simple_tag(moments.at)
register.filter(moments.time_left)
register.filter(legible_text.legible)
register.filter(legible_text.breakable)
register.filter(legible_text.as_json)
register.filter("hex", legible_text.hexadecimal)
register.simple_tag(small_charts.sparkline)
register.simple_tag(small_charts.share)
register.simple_tag(search)
register.filter(sentence)
register.filter(app_frames)


@register.filter
def filters_in_words(filters: Mapping[str, str]) -> str:
    """Describe a list's filters in a line: "person anna · action skip.added"."""
    return " · ".join(f"{name} {value}" for name, value in filters.items() if value)


@register.simple_tag
def reason_limit() -> int:
    """Return the most characters that a decision's reason may have."""
    return REASON_LIMIT


@register.filter
def silent(message: Poison) -> bool:
    """Tell whether consumers did not confirm a redrive of a message in time."""
    return message.silent(clock.now())


@register.filter
def kind(broker: Broker) -> str:
    """Return the title of a broker's kind, such as its product's name."""
    return adapters.title_of(broker.kind)
