"""Template tags and filters."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.template import Context, Template

from apps.core.statement_timeouts import TOO_SLOW, TooSlow
from apps.dashboard.keyset_pagination import BoundedCount
from apps.dashboard.templatetags import shared_page_tags


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<script>", "&lt;script&gt;"),
        ("a\u202eb", 'a<span class="unseen">U+202E</span>b'),
        ("\x1b\x00", '<span class="unseen">U+001B U+0000</span>'),
        ("two\nlines\t.", "two\nlines\t."),
        ("naïve 漢字 🎉", "naïve 漢字 🎉"),
    ],
)
def test_shows_what_would_hide_in_a_text(text: str, html: str) -> None:
    assert shared_page_tags.legible(text) == html


@pytest.mark.parametrize(
    ("name", "html"),
    [
        ("KeyError", "Key<wbr>Error"),
        ("a.b.HTTPError2X", "a.<wbr>b.<wbr>HTTPError2<wbr>X"),
        ("x-died_at:/q", "x-<wbr>died_<wbr>at:/<wbr>q"),
        ("a <b>", "a &lt;b&gt;"),
        ("a\u202eB", 'a<span class="unseen">U+202E</span>B'),
        ("...", "..."),
        ("", ""),
    ],
)
def test_a_long_name_may_break_where_its_words_meet(name: str, html: str) -> None:
    assert shared_page_tags.breakable(name) == html


def test_a_state_is_a_word_a_glyph_and_a_colour() -> None:
    assert shared_page_tags.pill("handled") == (
        '<span class="pill ok"><span aria-hidden="true">✓</span>Handled</span>'
    )


def test_a_state_from_tomorrow_is_shown_by_its_own_word() -> None:
    assert "Snoozed" in shared_page_tags.pill("snoozed")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (59, "now"), (60, "1m"), (7200, "2h"), (1e6, "11d")],
)
def test_tells_an_age_in_its_largest_unit(seconds: float, text: str) -> None:
    assert shared_page_tags.relative(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(("age", "text"), [("now", "just now"), ("3h", "3h ago")])
def test_an_age_in_a_sentence_is_said_in_words(age: str, text: str) -> None:
    assert shared_page_tags.in_words(age) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 message"),
        (1204, "1,204 messages"),
        (BoundedCount(1), "1 message"),
        (BoundedCount(10_001), "10,000+ messages"),
        (TOO_SLOW, f"{shared_page_tags.took_too_long()} messages"),
    ],
)
def test_counts_in_words(count: int | BoundedCount | TooSlow, text: str) -> None:
    assert shared_page_tags.count_noun(count, "message") == text


@pytest.mark.parametrize(
    "html",
    [
        shared_page_tags.number(TOO_SLOW),
        shared_page_tags.percent(TOO_SLOW),
        shared_page_tags.ago(TOO_SLOW),
        shared_page_tags.ago(TOO_SLOW["oldest"], in_sentence=True),
    ],
)
def test_a_figure_that_took_too_long_is_a_dash_that_says_so(html: str) -> None:
    assert html == shared_page_tags.took_too_long()
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
    assert (shared_page_tags.number(None), shared_page_tags.number("")) == ("—", "—")


def test_links_to_what_has_all_the_terms() -> None:
    link = shared_page_tags.search(topic='a "b" c', problem=5)

    assert link == "?q=topic%3A%22a+%5C%22b%5C%22+c%22+problem%3A5"


def test_draws_each_value_by_its_share_of_the_highest() -> None:
    drawn = shared_page_tags.sparkline([0, 5, 10], "15 failures")

    assert re.findall(r' height="([^"]+)"', drawn) == ["9.5", "19.0"]


def test_draws_rows_that_are_compared_by_one_scale_and_the_least_still_shows() -> None:
    drawn = shared_page_tags.sparkline([0, 1, 260], "261 failures", top=520)

    assert re.findall(r' height="([^"]+)"', drawn) == ["1.0", "9.5"]


def test_draws_no_axis_under_a_single_bar_unless_it_is_wide() -> None:
    narrow = [
        shared_page_tags.sparkline(values, "") for values in ([0, 5], [3, 5], [0, 0])
    ]
    wide = shared_page_tags.sparkline([0, 5], "", wide=True)

    axes = ["<line" in drawn for drawn in (*narrow, wide)]
    assert axes == [False, True, True, True]


def test_tells_the_detail_of_an_entry_in_a_line() -> None:
    detail = {"verb": "drop", "query": None, "counts": {"dropped": 3, "waiting": 0}}

    assert shared_page_tags.facts(detail) == "verb drop · counts 3 dropped"


def test_every_field_for_a_reason_has_the_limit_of_the_audit_trail() -> None:
    templates = Path(__file__).resolve().parents[3] / "templates"
    pages = [file.read_text() for file in templates.rglob("*.html")]
    fields = re.findall(r'<(?:input|textarea) [^>]*name="reason"[^>]*', "".join(pages))

    visible = [field for field in fields if 'type="hidden"' not in field]
    assert visible
    assert [x for x in visible if 'maxlength="{% reason_limit %}"' not in x] == []
