"""Links from the terms and states of pages to their definitions in Help."""

from __future__ import annotations

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify

from apps.dashboard.presentation.definitions import DEFINITIONS
from apps.dashboard.presentation.state_pills import pill


def term(name: str, label: str = "") -> SafeString:
    """Show a number's label, with its definition on hover and a link to Help.

    A link can be reached by keyboard, and screen readers read its title.
    """
    definition = DEFINITIONS[name]
    return _with_definition(name, label or definition.label)


def counted_pill(state: str) -> SafeString:
    """Render the pill of a state whose messages or items are counted next to it.

    It links to the state's definition in Help, if there is one.
    """
    return _with_definition(state, pill(state)) if state in DEFINITIONS else pill(state)


def _with_definition(name: str, text: str) -> SafeString:
    """Render a text as a link to a term's definition in Help, which hovering shows."""
    return format_html(
        '<a class="term" href="{}#{}" title="{}">{}</a>',
        reverse("help"),
        anchor(name),
        DEFINITIONS[name].means,
        text,
    )


def anchor(name: str) -> str:
    """Return the anchor of a term's definition on the Help page."""
    return f"means-{slugify(name)}"


def means(name: str) -> str:
    """Return the text of Help's definition of a number or state."""
    return DEFINITIONS[name].means
