"""Counts as text, and numbers that took too long to count."""

from __future__ import annotations

import pytest
from django.template import Context, Template

from apps.core.statement_timeouts import TOO_SLOW, TooSlow
from apps.dashboard.keyset_pagination import BoundedCount
from apps.dashboard.presentation.counts_as_text import (
    count_noun,
    number,
    percent,
    took_too_long,
)
from apps.dashboard.presentation.moments import ago


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 message"),
        (1204, "1,204 messages"),
        (BoundedCount(1), "1 message"),
        (BoundedCount(10_001), "10,000+ messages"),
        (TOO_SLOW, f"{took_too_long()} messages"),
    ],
)
def test_counts_in_words(count: int | BoundedCount | TooSlow, text: str) -> None:
    assert count_noun(count, "message") == text


@pytest.mark.parametrize(
    "html",
    [
        number(TOO_SLOW),
        percent(TOO_SLOW),
        ago(TOO_SLOW),
        ago(TOO_SLOW["oldest"], in_sentence=True),
    ],
)
def test_a_figure_that_took_too_long_is_a_dash_that_says_so(html: str) -> None:
    assert html == took_too_long()
    assert "took too long" in html


def test_a_template_can_make_neither_0_nor_none_of_a_figure_that_took_too_long() -> (
    None
):
    template = Template(
        "{% if figure %}{{ figure }}{% else %}none{% endif %}"
        "{% if figure.open == 0 %}0{% endif %}{{ figure.open.number }}"
        "{% for each in figure %}{{ each }}{% endfor %}"
    )

    assert template.render(Context({"figure": TOO_SLOW})) == "——"


def test_nothing_at_all_is_a_dash() -> None:
    assert (number(None), number("")) == ("—", "—")
